"""Products with frozen weights in NF4, as bitsandbytes 0.41 runs them.

Facts of bitsandbytes-foundation/bitsandbytes at 0.41.0, and of Lightning Fabric 2.1's `BitsandbytesPrecision`:

- bitsandbytes/functional.py: two weights in a byte; a scale in single precision for each 64 weights, or, with double quantization,
  one byte for it, and a scale in single precision for each 256 of these, with one offset.
- lightning/fabric/plugins/precision/bitsandbytes.py quantizes float16 weights, so that they are float16 again when they are
  dequantized, and are converted to the input's type.
- bitsandbytes/autograd/_functions.py: the weight is dequantized in the forward pass and again in the backward pass. Where the input
  has a gradient, the product keeps it as an attribute of its node, so that it lives as long as the loss. (Later releases
  do not keep it.)
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
        if not double:
            self.register_buffer("scales", torch.zeros(blocks))
            return
        self.register_buffer("scales", torch.zeros(blocks, dtype=torch.uint8))
        self.register_buffer("scales_of_scales", torch.zeros(-(-blocks // _SCALES)))
        self.register_buffer("code", torch.zeros(256))
        self.register_buffer("offset", torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Return the product (..., outputs) with features (..., inputs)."""
        product: Tensor = _Product.apply(features, self)
        return product

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """Return the weight (outputs, inputs)."""
        scales = self.scales
        if scales.dtype == torch.uint8:
            scales = torch.ops.bitsandbytes.dequantize_blockwise(
                scales, self.scales_of_scales, self.code, _SCALES, torch.float32
            )
            scales += self.offset
        weight: Tensor = torch.ops.bitsandbytes.dequantize_4bit(
            self.packed, scales, _BLOCK, "nf4", self.shape, torch.float16
        )
        return weight.to(dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, layer: Nf4Linear) -> Tensor:
        result = functional.linear(features, layer.dequantized(features.dtype), layer.bias)
        ctx.layer = layer
        ctx.kept = features if ctx.needs_input_grad[0] else None
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        (gradient,) = gradients
        return torch.matmul(gradient, ctx.layer.dequantized(gradient.dtype)), None


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _import_bitsandbytes() -> None:
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise MembenchError("weights in NF4 need bitsandbytes: pip install bitsandbytes") from error
