"""Kinds of values that keywords have, each with what a value must be."""

import os
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Annotated, Any

from membench.core.checks import MOST, Requirement


def instance_of(kind: Any, description: str) -> Requirement:
    """Return the requirement that a value is an instance of a class, or of one in a union."""
    return Requirement(description, lambda value: isinstance(value, kind))


def as_names(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return names that are given in a list, or one name."""
    return (value,) if isinstance(value, str) else tuple(value)


def _are_names(value: Any) -> bool:
    is_list = isinstance(value, list | tuple | set | frozenset) and all(isinstance(each, str) for each in value)
    return is_list or isinstance(value, str)


def _is_precision(value: Any) -> bool:
    return isinstance(value, str | int) or str(type(value)) == "<class 'torch.dtype'>"


def _is_count(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and 0 < int(value) < MOST


Name = Annotated[str, instance_of(str, "a name")]
Names = Annotated[Sequence[str] | str, Requirement("a name or a list of names", _are_names)]
AnyPrecision = Annotated[Any, Requirement("a name such as 'amp_bf16', or a torch.dtype", _is_precision)]
Switch = Annotated[bool, instance_of(bool, "True or False")]
Count = Annotated[int, Requirement("a positive whole number", _is_count)]
Size = str | float
"""``"200 MB"`` (1 MB is 1024 x 1024 bytes), or a number of bytes."""
Folder = Annotated[str | os.PathLike[str], instance_of(str | os.PathLike, "a folder")]
