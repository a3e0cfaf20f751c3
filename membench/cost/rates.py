"""Seconds of a kernel from a device's peak rates and the fractions of them that its family reaches."""

from dataclasses import dataclass
from math import inf

from membench.core.graph.precision import Precision
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import KernelRates
from membench.cost.attention import efficient_ops_per_s
from membench.cost.kernels import Family, Kernel
from membench.cost.loads import CUDNN_LOAD_BYTES
from membench.cost.products import Multiplier, product_time_s, single_fraction

_ITEMSIZES = {Precision.FP16: 2, Precision.BF16: 2, Precision.FP8: 1, Precision.INT8: 1}
"""Of a factor's element, in bytes; of others, 4."""
_OF_TENSOR_CORES = (Precision.FP16, Precision.BF16, Precision.TF32)
"""Formats of convolutions whose kernels want channels last."""


@dataclass(frozen=True, slots=True)
class PeakTimes:
    """Seconds of a kernel at peak rates: of its operations, of its bytes, and of changing the layout around it."""

    multiplying_s: float
    moving_s: float
    layout_s: float


def kernel_time_s(kernel: Kernel, rates: KernelRates, device: DeviceProfile) -> float:
    """Return the seconds that a kernel keeps the device busy, by its operations or by its bytes, the longer."""
    peak, fractions = peak_times(kernel, rates, device), reached(kernel, rates, device)
    busy_s = max(peak.multiplying_s / fractions.multiplying_s, peak.moving_s / fractions.moving_s)
    return busy_s + peak.layout_s / fractions.layout_s


def peak_times(kernel: Kernel, rates: KernelRates, device: DeviceProfile) -> PeakTimes:
    """Return a kernel's seconds at the device's peak rates, its tiles and waves included."""
    moving_s = kernel.moved_bytes / device.memory_bytes_per_s
    by_tensor_cores = kernel.precision in _OF_TENSOR_CORES and not _is_single(kernel, device)
    layout_s = kernel.layout_bytes / device.memory_bytes_per_s if by_tensor_cores else 0.0
    ops_per_s = device.product_ops_per_s(kernel.precision) * device.sustained_clock
    match kernel.family:
        case Family.PRODUCT | Family.CONVOLUTION | Family.GROUPED if kernel.product is not None:
            unit = Multiplier(
                ops_per_s,
                device.memory_bytes_per_s,
                device.multiprocessors,
                _ITEMSIZES.get(kernel.precision, 4),
                rates.edge_bytes_per_clock * device.clock_hz,
                rates.tile_depth,
            )
            return PeakTimes(product_time_s(kernel.product, unit), moving_s, layout_s)
        case Family.ATTENTION if kernel.attention_kernel:
            peak, _ = efficient_ops_per_s(kernel.attention_kernel, kernel.precision, rates, device)
            return PeakTimes(kernel.operations / peak, moving_s, 0.0)
        case Family.PRODUCT | Family.ATTENTION | Family.CONVOLUTION | Family.GROUPED | Family.NARROW:
            return PeakTimes(kernel.operations / ops_per_s, moving_s, layout_s)
        case Family.DEPTHWISE:  # by the units of single precision, in any format and layout
            return PeakTimes(kernel.operations / device.arithmetic_ops_per_s, moving_s, 0.0)
        case _:
            return PeakTimes(0.0, moving_s, 0.0)


def reached(kernel: Kernel, rates: KernelRates, device: DeviceProfile) -> PeakTimes:
    """Return the fractions of the peak rates that a kernel reaches, each in the place of its time."""
    return PeakTimes(
        _product_fraction(kernel, rates, device),
        min(
            _memory_fraction(kernel, rates),
            _waiting_bytes_per_s(kernel.load_bytes, kernel.blocks, rates, device) / device.memory_bytes_per_s,
        ),
        _layout_fraction(kernel, rates, device),
    )


def _layout_fraction(kernel: Kernel, rates: KernelRates, device: DeviceProfile) -> float:
    if kernel.is_pointwise:
        return rates.pointwise_layout or rates.layout
    limit_bytes_per_s = _waiting_bytes_per_s(CUDNN_LOAD_BYTES, None, rates, device)
    return min(rates.layout, limit_bytes_per_s / device.memory_bytes_per_s)


def _waiting_bytes_per_s(load_bytes: float, blocks: int | None, rates: KernelRates, device: DeviceProfile) -> float:
    """Return the most that threads move which wait for each load (Little's law), infinite for others.

    Where there is a thread block for each channel, one of them is taken to fill a multiprocessor.
    """
    if not load_bytes or device.multiprocessors is None:
        return inf
    busy = min(blocks or device.multiprocessors, device.multiprocessors)
    return busy * device.multiprocessor.threads * load_bytes * device.clock_hz / rates.load_clocks


def _is_single(kernel: Kernel, device: DeviceProfile) -> bool:
    """Return whether the units of single precision multiply: the device has no others for the format."""
    return kernel.precision not in device.precision_ops_per_s


def _product_fraction(kernel: Kernel, rates: KernelRates, device: DeviceProfile) -> float:
    """Return the fraction of the rate of tensor cores, or of that of single precision.

    Single precision is published for forward passes alone; it is slower by the same factors as tensor cores where a
    convolution has groups or is a weight gradient.
    """
    if kernel.family is Family.DEPTHWISE:
        return _depthwise_fraction(kernel, rates)
    if kernel.family is Family.ATTENTION and kernel.attention_kernel:
        peak, reached_ops_per_s = efficient_ops_per_s(kernel.attention_kernel, kernel.precision, rates, device)
        return reached_ops_per_s / peak
    if kernel.family is Family.ATTENTION:
        return rates.attention * (single_fraction(rates, device) if _is_single(kernel, device) else rates.product)
    by_tensor_cores = rates.product if kernel.family is Family.PRODUCT else _convolution_fraction(kernel, rates)
    if not _is_single(kernel, device):
        return min(by_tensor_cores, _unaligned_fraction(kernel, rates, device))
    reached_fraction = single_fraction(rates, device)
    if kernel.family is Family.PRODUCT:
        return reached_fraction
    direction = by_tensor_cores / rates.convolution
    return rates.single_convolution * direction * reached_fraction / rates.single_product


def _unaligned_fraction(kernel: Kernel, rates: KernelRates, device: DeviceProfile) -> float:
    """Return what loads of fewer elements than 16 bytes reach, each as slow as one's; infinite for others."""
    itemsize = _ITEMSIZES.get(kernel.precision, 4)
    if kernel.aligned_bytes == 16 or itemsize != 2:
        return inf
    of_device = (device.multiprocessors or inf) * rates.unaligned_ops_per_s
    return kernel.aligned_bytes / itemsize * of_device / device.product_ops_per_s(kernel.precision)


def _convolution_fraction(kernel: Kernel, rates: KernelRates) -> float:
    if kernel.family is Family.GROUPED:
        return rates.grouped_channels_last if kernel.channels_last else rates.grouped
    if kernel.family is Family.NARROW:
        return rates.convolution
    return rates.weight_gradient if kernel.is_weight_gradient else rates.convolution


def _depthwise_fraction(kernel: Kernel, rates: KernelRates) -> float:
    if kernel.is_weight_gradient:
        return rates.depthwise_weight_channels_last if kernel.channels_last else rates.depthwise_weight
    return rates.depthwise_channels_last if kernel.channels_last else rates.depthwise


def _memory_fraction(kernel: Kernel, rates: KernelRates) -> float:
    match kernel.family:
        case Family.COPY:
            return rates.copy
        case Family.NORMALIZATION:
            return rates.normalization
        case Family.DEQUANTIZATION:
            return rates.dequantization
        case Family.REDUCTION:
            return rates.reduction
        case _:
            return rates.elementwise
