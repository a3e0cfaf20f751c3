"""Efficiency: the fractions of a device's peak rates that a framework's kernels reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from membench.core.checks import FRACTION, NOT_NEGATIVE, POSITIVE, SWITCH, check


@dataclass(frozen=True)
class Efficiency:
    """Fractions of a device's peak rates by the kind of a task, and fixed times per task and per step.

    Attributes:
        arithmetic: of the peak arithmetic rate, in convolutions, inner products and attention.
        memory: of the peak memory bandwidth, in memory-bound layers.
        launch_s: seconds of every task before its work starts: dispatch, launches and gaps between its kernels.
        step_s: seconds of every step outside its tasks: data layer, weight update, the host's own work.
        codec: of the peak memory bandwidth, in one stream's conversions between an activation and its encoded form; None:
            `memory`.
        codec_streams: speed-up of many streams over one, at best.
        codec_nonzero_bytes: of a non-zero in the form that conversions go through where it is wider than the encoded one; 0:
            they go straight to the encoded form.
        convolution: of the peak arithmetic rate, by the name of each of the library's convolution algorithms; empty if the
            framework offers no choice, and `arithmetic` holds for convolutions too.
        bandwidth_bounds_products: whether an inner product whose weights take longer to read than to multiply takes that
            time; otherwise products are priced by their operations alone.
        half_waves: waves of thread blocks at which a kernel reaches half of its rate (`membench.cost.waves`); 0: kernels of
            any size reach all of it.
        algorithms_fit_alone: offer only those algorithms with which a convolution, alone on the device, fits its memory, as
            where the library times them on that device.

    Raises:
        MembenchError: a fraction is not above 0 and at most 1, or another number is negative.
    """

    arithmetic: float
    memory: float
    launch_s: float = 0.0
    step_s: float = 0.0
    codec: float | None = None
    codec_streams: float = 1.0
    codec_nonzero_bytes: int = 0
    convolution: Mapping[str, float] = field(default_factory=dict)
    bandwidth_bounds_products: bool = False
    half_waves: float = 0.0
    algorithms_fit_alone: bool = False

    def __post_init__(self) -> None:
        check(FRACTION, arithmetic=self.arithmetic, memory=self.memory, **self.convolution)
        check(
            NOT_NEGATIVE,
            launch_s=self.launch_s,
            step_s=self.step_s,
            codec_nonzero_bytes=self.codec_nonzero_bytes,
            half_waves=self.half_waves,
        )
        check(
            SWITCH,
            bandwidth_bounds_products=self.bandwidth_bounds_products,
            algorithms_fit_alone=self.algorithms_fit_alone,
        )
        check(POSITIVE, codec_streams=self.codec_streams)
        if self.codec is not None:
            check(FRACTION, codec=self.codec)
