"""Efficiency: what a framework's kernels reach of a device's peak rates."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Efficiency:
    """Fractions of a device's peak rates, by the kind of a task, and what comes on top.

    Attributes:
        arithmetic: of the peak arithmetic rate, in convolutions, inner products and attention.
        memory: of the peak memory bandwidth, in the layers that compute little for each byte.
        launch_s: seconds of every task before its work starts: dispatch, launches and gaps between its kernels.
        step_s: seconds of every step that belong to no task: data layer, update of the weights, the host's own work.
    """

    arithmetic: float
    memory: float
    launch_s: float = 0.0
    step_s: float = 0.0
