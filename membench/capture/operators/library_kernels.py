"""Operators that run as several kernels, and hold memory between them: recorded as these.

torch's composite operators arrive whole where they are called below autograd, as in a library's own operator.

bitsandbytes 0.50 (``bitsandbytes/backends/default/ops.py`` for the CPU, ``backends/cuda/ops.py``):

- A product with a weight of 4 bits makes the weight again in the input's precision and multiplies. For few rows a CUDA
  kernel does both at once; how many are few depends on the shapes and the card, and is assumed to be `_FUSED_ROWS`.
- A product of 8-bit numbers has sums of 32 bits, which a second kernel scales to half precision.
- LLM.int8's outliers are columns whose number depends on the values of the activations. They are about 0.1 % of the
  columns (Dettmers et al. 2022, Section 3.2), and are left out on a GPU that is not at hand: only the search for them
  is recorded.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from membench.core.libraries.torch_devices import composite_kernel
from membench.core.libraries.torch_internals import HigherOrderOperator, OpOverload, composed_kernel, is_composite

_FUSED_ROWS = 16
"""Least of ``_gemm_4bit_use_custom_cuda``'s bounds for large weights on an A100; others are up to 128."""

COMPOSED = frozenset({
    "_safe_softmax", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "binary_cross_entropy_with_logits",
    "dist", "isinf", "ldexp", "mvlgamma",
})  # fmt: skip
"""Operators of torch that have no kernel on CUDA, and hold memory between the others of which they consist.

On the CPU, and on a GPU that is at hand, they run whole, and what they hold is measured.
`tests/capture/test_composites.py` finds them among all."""

_Parts = Callable[..., Any]


def parts_of(operator: OpOverload | HigherOrderOperator, args: tuple[Any, ...], is_absent: bool) -> _Parts | None:
    """Return a function that runs an operator as its kernels, each an operator; None if it is one kernel.

    Args:
        is_absent: the device is a GPU that is not at hand; otherwise it is the CPU, or a GPU whose kernels are
            measured.
    """
    if isinstance(operator, HigherOrderOperator):
        return composed_kernel(operator)
    if operator.namespace == "aten":
        if is_composite(operator):
            return operator.decompose
        name = str(operator.overloadpacket).removeprefix("aten.")
        if is_absent and name == "logsumexp" and args[0].is_floating_point():
            return _logsumexp
        return composite_kernel(operator) if is_absent and name in COMPOSED else None
    if operator.namespace != "bitsandbytes":
        return None
    name = str(operator).removeprefix("bitsandbytes.").removesuffix(".default")
    if not is_absent:
        on_cpu = isinstance(args[0], Tensor) and args[0].device.type == "cpu"
        return _product_of_4_bits if on_cpu and name == "gemm_4bit" else None
    is_one = name == "gemm_4bit" and _is_fused(*args[:5])
    if is_one or (name == "int8_vectorwise_quant" and not any(args[1:])):
        return None
    return _ON_GPU.get(name)


def _logsumexp(numbers: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
    """Run as CUDA does (``ReduceOps.cpp``, `logsumexp_out_impl`), which holds an exponential of each number."""
    largest = torch.amax(numbers, dims, True)
    result = torch.sum((numbers - largest).exp_(), dims, keepdim)
    return result.log_().add_(largest if keepdim else largest.squeeze(tuple(dims)))


def _is_fused(rows: Tensor, _: Tensor, shape: Sequence[int], __: Tensor, block_size: int) -> bool:
    depth = shape[1]
    return rows.numel() // depth <= _FUSED_ROWS and depth % block_size == 0


def _product_of_4_bits(
    rows: Tensor,
    weight: Tensor,
    shape: Sequence[int],
    statistics: Tensor,
    block_size: int,
    quant_type: str,
    bias: Tensor | None = None,
    absmax_8bit: Tensor | None = None,
    absmax_code: Tensor | None = None,
    absmax_offset: Tensor | None = None,
) -> Tensor:
    library = torch.ops.bitsandbytes
    if absmax_8bit is not None:
        scales = library.dequantize_blockwise.default(absmax_8bit, statistics, absmax_code, 256, torch.float32)
        statistics = scales + absmax_offset
        del scales
    full = library.dequantize_4bit.default(weight, statistics, block_size, quant_type, shape, rows.dtype)
    return torch.nn.functional.linear(rows, full, bias)


def _product_of_8_bits(
    rows: Tensor,
    weight: Tensor,
    row_scales: Tensor,
    column_scales: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    sums = torch.ops.bitsandbytes.int8_linear_matmul.default(rows, weight)
    is_added = bias is not None and bias.dtype is not torch.float16
    output = torch.ops.bitsandbytes.int8_mm_dequant.default(
        sums, row_scales, column_scales, bias=None if is_added else bias
    )
    if is_added:
        output.add_(bias)
    return output.to(dtype or torch.float16)


def _product_without_outliers(
    rows: Tensor,
    quantized: Tensor,
    weight: Tensor,
    row_scales: Tensor,
    column_scales: Tensor,
    outliers: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    outlying = torch.empty(0, dtype=rows.dtype, device=rows.device)
    return _product_of_8_bits(quantized, weight, row_scales, column_scales, bias, rows.dtype), outlying


def _quantized_rows(rows: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor | None]:
    outliers = None
    if threshold:
        (rows.abs() >= threshold).any()
        outliers = torch.empty(0, dtype=torch.int64, device=rows.device)
    quantized, scales, _ = torch.ops.bitsandbytes.int8_vectorwise_quant.default(rows)
    return quantized, scales, outliers


_ON_GPU: dict[str, _Parts] = {
    "gemm_4bit": _product_of_4_bits,
    "int8_scaled_mm": _product_of_8_bits,
    "int8_mixed_scaled_mm": _product_without_outliers,
    "int8_vectorwise_quant": _quantized_rows,
}
