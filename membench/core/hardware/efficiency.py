"""Efficiency: the fractions of a device's peak rates that a framework's kernels reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any

from membench.core.checks import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, SWITCH, check, choice
from membench.core.errors import MembenchError


@dataclass(frozen=True)
class KernelRates:
    """What a GPU's libraries reach of its peak rates, by the family of a kernel (`membench.cost.kernels`).

    A fraction can exceed 1: cards run above the boost clock of their datasheets where power and heat allow it.

    Attributes:
        product, convolution, weight_gradient: share of the rate of tensor cores, in products of matrices, in
            convolutions and their data gradients, and in the weight gradients of convolutions.
        grouped, grouped_channels_last: the same of convolutions in groups, by layout.
        attention: share of the rate of a product, in fused attention.
        efficient_attention: the same in memory-efficient attention.
        efficient_attention_single: share of the rate of TF32, in memory-efficient attention of single precision; on a
            device without TF32, it reaches what fused attention does.
        efficient_attention_ops_per_s: the most of one multiprocessor, in memory-efficient attention, whose kernels are
            those of an A100 on every later card: ``forward``, ``backward``, ``wide_forward`` and ``wide_backward`` for
            heads of more than 128, and ``single``; without an entry, there is no such limit.
        single_product, single_convolution: share of the rate of single precision, without tensor cores.
        multiplying: share of a product's instructions that multiply, in single precision: the most of the rate where a
            multiprocessor issues no more instructions than its lanes take.
        depthwise, depthwise_channels_last: share of the rate of single precision, which computes them in any
            precision, in forward passes and data gradients, by layout.
        depthwise_weight, depthwise_weight_channels_last: the same in weight gradients.
        elementwise, copy, normalization, reduction: share of the memory bandwidth; a copy reorders elements.
        dequantization: share of the memory bandwidth, where weights of four or eight bits are read and written in a
            wider type.
        layout: share of the memory bandwidth, where activations are brought into the layout of tensor cores and back.
        load_clocks: clocks from one load of a thread to its next, in kernels whose threads wait for each load.
        edge_bytes_per_clock: rate at which a multiprocessor loads the edges of a product's tiles.
        tile_depth: steps in depth that filling and emptying the pipeline of a tile takes.
        kernel_s: between a kernel and the next.
        issue_s: time of the host for each operator.
        compiled_issue_s: time of the host for each kernel in compiled code.
        waits_between_passes: the host waits for the device before each forward and each backward pass, and behind each
            message to or from another stage.
        pointwise_layout: as `layout`, of convolutions of 1 x 1, which are products in either layout; None: as others.
        unaligned_ops_per_s: rate of one multiprocessor, in products of half precision whose rows begin at odd elements;
            infinite: as others.

    Raises:
        MembenchError: a number is not positive, a time or a depth is negative, or the switch is not one.
    """

    product: float
    convolution: float
    weight_gradient: float
    grouped: float
    grouped_channels_last: float
    attention: float
    efficient_attention: float
    efficient_attention_single: float
    single_product: float
    multiplying: float
    single_convolution: float
    depthwise: float
    depthwise_channels_last: float
    depthwise_weight: float
    depthwise_weight_channels_last: float
    elementwise: float
    copy: float
    normalization: float
    reduction: float
    dequantization: float
    layout: float
    load_clocks: float
    edge_bytes_per_clock: float
    tile_depth: float
    kernel_s: float
    issue_s: float
    compiled_issue_s: float
    waits_between_passes: bool = False
    pointwise_layout: float | None = None
    unaligned_ops_per_s: float = inf
    efficient_attention_ops_per_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(SWITCH, waits_between_passes=self.waits_between_passes)
        others = {"tile_depth", "kernel_s", "issue_s", "compiled_issue_s"}
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "waits_between_passes"}
        numbers = {name: value for name, value in own.items() if not isinstance(value, Mapping)}
        for name in (each for each, value in own.items() if isinstance(value, Mapping)):
            check(POSITIVE, **{f"{name}.{operator}": rate for operator, rate in own[name].items()})
        check(NOT_NEGATIVE, **{name: value for name, value in numbers.items() if name in others})
        positive = {name: value for name, value in numbers.items() if name not in others}
        check(POSITIVE, **{name: value for name, value in positive.items() if value is not None})


@dataclass(frozen=True)
class Efficiency:
    """Fractions of a device's peak rates by the kind of a task, and fixed times per task and per step.

    Attributes:
        arithmetic: fraction of the peak arithmetic rate, in convolutions, inner products and attention.
        memory: fraction of the peak memory bandwidth, in memory-bound layers.
        launch_s: seconds of every task before its work starts: dispatch, launches and gaps between its kernels.
        step_s: seconds of every step outside its tasks: data layer, weight update, the host's own work.
        codec: fraction of the peak memory bandwidth, in one stream's conversions between an activation and its encoded
            form; None: `memory`.
        codec_streams: streams of conversions that fill the device; one leaves the rest of it to kernels.
        codec_nonzero_bytes: bytes of a non-zero in the form that conversions go through where it is wider than the
            encoded one; 0: they go straight to the encoded form.
        convolution: fraction of the peak arithmetic rate, by the name of each of the library's convolution algorithms;
            empty if the framework offers no choice, and `arithmetic` holds for convolutions too.
        bandwidth_bounds_products: whether an inner product whose weights take longer to read than to multiply takes
            that time; otherwise products are priced by their operations alone.
        half_waves: waves of thread blocks at which a kernel reaches half of its rate (`membench.cost.waves`); 0:
            kernels of any size reach all of it.
        tile_channels: channels in a tile of a convolution's product, which is computed in whole tiles; 1: none are
            empty. For convolutions without an algorithm of their own.
        passes: rate of a convolution over `arithmetic`, by pass: ``forward``, and by gradient ``data`` and ``weight``.
            For convolutions without an algorithm of their own; 1 for a pass without an entry.
        algorithms_fit_alone: offer only those algorithms with which a convolution, alone on the device, fits its
            memory, as where the library times them on that device.
        kernels: rates by family of kernel, which replace `arithmetic`, `memory` and `half_waves`; None: those hold.

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
    tile_channels: int = 1
    passes: Mapping[str, float] = field(default_factory=dict)
    algorithms_fit_alone: bool = False
    kernels: KernelRates | None = None

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
        check(POSITIVE, codec_streams=self.codec_streams, **self.passes)
        check(COUNT, tile_channels=self.tile_channels)
        if self.codec is not None:
            check(FRACTION, codec=self.codec)


def with_rates(efficiency: Efficiency, rates: Mapping[str, float]) -> Efficiency:
    """Return an efficiency with other values of some kernels' rates, by their names.

    Raises:
        MembenchError: there is no such rate, or the framework's kernels have none.
    """
    if efficiency.kernels is None:
        raise MembenchError(f"{', '.join(rates)}: the framework has no rates by family of kernel")
    names = [each.name for each in fields(KernelRates)]
    for name in rates:
        choice(names, "rates", name)
    changed: dict[str, Any] = dict(rates)
    return replace(efficiency, kernels=replace(efficiency.kernels, **changed))
