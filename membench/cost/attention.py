"""Memory-efficient attention: which of its kernels runs, and what it reaches.

The kernels are xformers' for CUTLASS, in PyTorch's ``aten/src/ATen/native/transformers/cuda/mem_eff_attention``. Later
cards run the instructions of an A100, so that their rate follows the number of multiprocessors and not the peak of
tensor cores.
"""

from collections.abc import Iterable

from membench.core.graph.call import Value
from membench.core.graph.precision import Precision
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import KernelRates
from membench.cost.products import single_fraction

_WIDE_HEAD = 128
"""Largest head of kernels with its sums in registers (``cutlassB_f16_aligned_k128.cu``; others are ``k65536``)."""
_HALVES = (Precision.FP16, Precision.BF16)


def efficient_kernel(name: str, values: Iterable[Value]) -> str:
    """Return a call's kernel: ``"forward"``, ``"backward"``, for wide heads ``"wide_forward"``, empty for others.

    Args:
        name: the operator's name.
        values: its arguments; those of four dimensions have a head's elements last, but for a mask's.
    """
    if "efficient_attention" not in name:
        return ""
    heads = [value for value in values if len(value.shape) == 4][:3]
    is_wide = max(value.shape[-1] for value in heads) > _WIDE_HEAD
    return ("wide_" if is_wide else "") + ("backward" if name.endswith("_backward") else "forward")


def efficient_ops_per_s(
    kernel: str, precision: Precision, rates: KernelRates, device: DeviceProfile
) -> tuple[float, float]:
    """Return the peak of the units that multiply, and what the kernel reaches.

    Single precision is multiplied by tensor cores too, in three products of TF32 (CUTLASS, ``OpMultiplyAddFastF32``),
    where there are any.
    """
    if precision in _HALVES:
        peak, reached = device.product_ops_per_s(precision), rates.efficient_attention * rates.product
    elif Precision.TF32 in device.precision_ops_per_s:
        kernel, peak = "single", device.product_ops_per_s(Precision.TF32)
        reached = rates.efficient_attention_single
    else:
        peak, reached = device.arithmetic_ops_per_s, rates.attention * single_fraction(rates, device)
        return peak * device.sustained_clock, peak * device.sustained_clock * reached
    peak *= device.sustained_clock
    of_one = rates.efficient_attention_ops_per_s.get(kernel)
    if of_one is None or device.multiprocessors is None or Precision.TF32 not in device.precision_ops_per_s:
        return peak, peak * reached
    return peak, min(peak * reached, of_one * device.multiprocessors)
