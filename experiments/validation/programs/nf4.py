"""Products with frozen weights in NF4, as bitsandbytes 0.41 runs them.

Facts of bitsandbytes-foundation/bitsandbytes at 0.41.0, and of Lightning Fabric 2.1's `BitsandbytesPrecision`:

- bitsandbytes/functional.py: two weights in a byte; a scale in single precision for each 64 weights, or, with double
  quantization, one byte for it, and a scale in single precision for each 256 of these, with one offset.
- lightning/fabric/plugins/precision/bitsandbytes.py quantizes float16 weights, so that they are float16 again when they
  are dequantized, and are converted to the input's type.
- bitsandbytes/autograd/_functions.py: the weight is dequantized in the forward pass and again in the backward pass.
  Where the input has a gradient, the product keeps it as an attribute of its node, so that it lives as long as the
  loss. (Later releases do not keep it.)
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from membench.core.errors import MembenchError

_BLOCK = 64
"""Weights with one scale."""
_SCALES = 256
"""Scales with one scale, with double quantization."""
_STATE = ("scales", "scales_of_scales", "code", "offset")


class Nf4Linear(nn.Module):
    """A product with a frozen weight of four bits per element; its bias is a weight of its own.

    Args:
        double: the scales are quantized too.

    Raises:
        MembenchError: bitsandbytes, whose operators it calls, is not installed.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, double: bool = False) -> None:
        super().__init__()
        _import_bitsandbytes()
        self.shape = (outputs, inputs)
        blocks = -(-inputs * outputs // _BLOCK)
        self.packed = _frozen(torch.zeros(-(-inputs * outputs // 2), 1, dtype=torch.uint8))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        scales = [torch.zeros(blocks)]
        if double:
            bytes_of_scales = torch.zeros(blocks, dtype=torch.uint8)
            scales = [bytes_of_scales, torch.zeros(-(-blocks // _SCALES)), torch.zeros(256), torch.zeros(())]
        for name, tensor in zip(_STATE, scales, strict=False):
            self.register_buffer(name, tensor)

    def forward(self, features: Tensor) -> Tensor:
        """Return the product (..., outputs) with features (..., inputs)."""
        state = [getattr(self, name) for name in _STATE if hasattr(self, name)]
        product: Tensor = _Product.apply(features, self.bias, self.shape, self.packed, *state)
        return product


def dequantized(shape: tuple[int, int], dtype: torch.dtype, packed: Tensor, scales: Tensor, *doubled: Tensor) -> Tensor:
    """Return a weight from its bytes and its scales.

    Args:
        doubled: for scales that are quantized, their scales, the 256 values of a byte, and the offset.
    """
    if doubled:
        scales_of_scales, code, offset = doubled
        scales = torch.ops.bitsandbytes.dequantize_blockwise(scales, scales_of_scales, code, _SCALES, torch.float32)
        scales += offset
    weight: Tensor = torch.ops.bitsandbytes.dequantize_4bit(packed, scales, _BLOCK, "nf4", shape, torch.float16)
    return weight.to(dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, bias: Tensor | None, shape: tuple[int, int], *state: Tensor) -> Tensor:
        result = functional.linear(features, dequantized(shape, features.dtype, *state), bias)
        ctx.shape, ctx.state = shape, state
        ctx.kept = features if ctx.needs_input_grad[0] else None
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        weight = dequantized(ctx.shape, gradient.dtype, *ctx.state)
        return torch.matmul(gradient, weight), None, None, *(None for _ in ctx.state)


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _import_bitsandbytes() -> None:
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise MembenchError("weights in NF4 need bitsandbytes: pip install 'membench[tuning]'") from error
