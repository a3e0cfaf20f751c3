"""Calls that plain PyTorch refuses, but not on tensors without data, or that change a tensor's size behind its back."""

from typing import Any

import torch
from torch import Tensor

from membench.capture.operation import Operation
from membench.core.errors import UnsupportedModel

_PRODUCTS = frozenset({
    "aten.addmm.default", "aten.addmv.default", "aten.convolution.default", "aten.mm.default",
})  # fmt: skip
"""Operators of which a shape function accepts factors of different dtypes."""


def check_dtypes(operation: Operation, args: tuple[Any, ...], layer: str) -> None:
    """Refuse a product of factors of different dtypes.

    Raises:
        UnsupportedModel: names the layer.
    """
    if operation.operator not in _PRODUCTS:
        return
    dtypes = dict.fromkeys(
        str(each.dtype).removeprefix("torch.") for each in args if isinstance(each, Tensor)
    )
    if len(dtypes) > 1:
        raise UnsupportedModel(
            layer,
            f"it computes with tensors of {' and '.join(dtypes)} in one product, which PyTorch refuses",
            "convert the module or the batch, for example both by precision='bf16'",
        )


def check_size_is_kept(buffer: Tensor, layer: str) -> None:
    """Refuse writing to a buffer without elements, as an operator does that gives it a size at its first call.

    Raises:
        UnsupportedModel: names the layer.
    """
    if buffer.shape == torch.Size([0]):
        raise UnsupportedModel(
            layer, "it gives a buffer its size when it first runs", "call the module once on a batch before"
        )
