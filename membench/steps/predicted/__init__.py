"""Steps that are predicted: the graph as a device runs it, the simulated step, and what is stated of it."""
