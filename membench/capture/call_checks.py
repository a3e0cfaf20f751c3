"""Refused calls: those that a step would run differently, and those that plain PyTorch refuses with data alone."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from membench.capture.operation import Operation
from membench.capture.operators import aten
from membench.core.errors import UnsupportedModel
from membench.core.libraries.torch_internals import FakeTensor

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
    dtypes = dict.fromkeys(str(each.dtype).removeprefix("torch.") for each in args if isinstance(each, Tensor))
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


def check_dense(func: Any, outputs: Sequence[Any], layer: str) -> None:
    """Refuse an operator that makes a sparse tensor.

    Raises:
        UnsupportedModel: it does; names the layer.
    """
    if any(isinstance(out, Tensor) and out.layout is not torch.strided for out in outputs):
        raise UnsupportedModel(layer, f"{func} makes a sparse tensor", "make a dense one, for example by sparse=False")


def check_call(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], layer: str) -> None:
    """Refuse a call that a step would run differently from the module.

    Raises:
        UnsupportedModel: it writes to a tensor that is not traced, or draws from its own random generator; names the
            layer.
    """
    check_dtypes(operation, args, layer)
    written = [aten.argument_at(at, args, kwargs) for at in operation.written]
    if not all(isinstance(tensor, FakeTensor) for tensor in written):
        raise UnsupportedModel(
            layer,
            f"{operation.operator} writes to a tensor that is not a buffer",
            "register it as a buffer of the module",
        )
    if kwargs.get("generator") is not None:
        raise UnsupportedModel(
            layer,
            f"{operation.operator} draws from its own random generator",
            "use torch's default generator, which torch.manual_seed seeds",
        )
