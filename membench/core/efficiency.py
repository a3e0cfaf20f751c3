"""Efficiency: what a framework's kernels reach of a device's peak rates."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from membench.core.checks import FRACTION, NOT_NEGATIVE, POSITIVE, check


@dataclass(frozen=True)
class Efficiency:
    """Fractions of a device's peak rates, by the kind of a task, and what comes on top.

    Attributes:
        arithmetic: of the peak arithmetic rate, in convolutions, inner products and attention.
        memory: of the peak memory bandwidth, in the layers that compute little for each byte.
        launch_s: seconds of every task before its work starts: dispatch, launches and gaps between its kernels.
        step_s: seconds of every step that belong to no task: data layer, update of the weights, the host's own work.
        codec: of the peak memory bandwidth, in what one stream converts between a map and its encoded form; None: as `memory`.
        codec_streams: how many times as fast as one stream many together are at best.
        convolution: of the peak arithmetic rate, by the name of each algorithm that its library has for convolutions; empty
            where the framework leaves no choice, and `arithmetic` holds for them too.

    Raises:
        MembenchError: a fraction is not above 0 and at most 1, or a time is negative.
    """

    arithmetic: float
    memory: float
    launch_s: float = 0.0
    step_s: float = 0.0
    codec: float | None = None
    codec_streams: float = 1.0
    convolution: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(FRACTION, arithmetic=self.arithmetic, memory=self.memory, **self.convolution)
        check(NOT_NEGATIVE, launch_s=self.launch_s, step_s=self.step_s)
        check(POSITIVE, codec_streams=self.codec_streams)
        if self.codec is not None:
            check(FRACTION, codec=self.codec)
