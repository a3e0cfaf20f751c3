"""Example batches from a description of their tensors, as ``inputs`` and ``targets`` of a file of ``conf/model``.

A tensor is ``{shape: [128], below: 30522}``: ``shape`` is of one sample, the batch comes before it. With ``below``,
whole numbers from 0 to below that one; with ``value``, that number everywhere; otherwise normally distributed numbers.
Another ``dtype`` than int64 for whole numbers and float32 is named as in torch. Dicts and lists of tensors are dicts
and lists in the batch; other values are passed as they are.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from membench.core.checks import COUNT, check
from membench.core.errors import MembenchError, near

_KEYS = ("shape", "below", "value", "dtype")


def example(name: str, described: Any, batch_size: int, sizes: Mapping[str, Any]) -> Any:
    """Return random tensors (batch_size, *shape) as they are described, on torch's default device.

    Args:
        name: the description's name, for errors.
        sizes: what a word in place of a number stands for.

    Raises:
        MembenchError: a description of a tensor has another key, or a value that is not of its kind.
    """
    if isinstance(described, Mapping):
        if "shape" in described:
            return _tensor(name, described, batch_size, sizes)
        return {key: example(f"{name}.{key}", each, batch_size, sizes) for key, each in described.items()}
    if isinstance(described, list):
        return [example(f"{name}.{i}", each, batch_size, sizes) for i, each in enumerate(described)]
    return described


def _tensor(name: str, described: Mapping[str, Any], batch_size: int, sizes: Mapping[str, Any]) -> Tensor:
    if unknown := [key for key in described if key not in _KEYS]:
        raise MembenchError(
            f"{name}.{unknown[0]}: a tensor is described by {', '.join(_KEYS)}{near(unknown[0], _KEYS)}"
        )
    if not isinstance(described["shape"], list):
        raise MembenchError(f"{name}.shape is a list such as [3, 224, 224], not {described['shape']!r}")
    shape = [batch_size, *(_size(f"{name}.shape", each, sizes) for each in described["shape"])]
    below, value = described.get("below"), described.get("value")
    dtype = _dtype(f"{name}.dtype", described.get("dtype", "float32" if below is None else "int64"))
    if value is not None:
        return torch.full(shape, value, dtype=dtype)
    most = None if below is None else _size(f"{name}.below", below, sizes)
    if most is None and not dtype.is_floating_point:
        raise MembenchError(f"{name}: numbers of {dtype} need a bound, below: 100, or one value, value: 1")
    if torch.get_default_device().type == "meta":  # random numbers without values would import SymPy
        return torch.empty(shape, dtype=dtype)
    return torch.randn(shape, dtype=dtype) if most is None else torch.randint(most, shape).to(dtype)


def _size(name: str, given: Any, sizes: Mapping[str, Any]) -> int:
    size = sizes.get(given, given) if isinstance(given, str) else given
    check(COUNT, **{name: size})
    return int(size)


def _dtype(name: str, given: Any) -> torch.dtype:
    dtype = getattr(torch, str(given), None)
    if not isinstance(dtype, torch.dtype):
        raise MembenchError(f"{name} is one of torch's, such as int64 or float16, not {given!r}")
    return dtype
