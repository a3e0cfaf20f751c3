"""Networks as chains of stages, for the planners that cut them so: `rotor`, `pofo`, `checkmate`."""
