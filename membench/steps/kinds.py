"""Kinds of values that keywords have, each with what a value must be."""

import os
from collections.abc import Sequence
from numbers import Integral
from typing import Annotated, Any

from membench.core.checks import MOST, Requirement


def instance_of(kind: Any, description: str) -> Requirement:
    """Return the requirement that a value is an instance of a class, or of one in a union."""
    return Requirement(description, lambda value: isinstance(value, kind))


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(isinstance(each, str) for each in value)


def _is_count(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and 0 < int(value) < MOST


Name = Annotated[str, instance_of(str, "a name")]
Names = Annotated[Sequence[str], Requirement("a list of names", _are_names)]
Switch = Annotated[bool, instance_of(bool, "True or False")]
Count = Annotated[int, Requirement("a positive whole number", _is_count)]
Size = str | float
"""``"200 MB"`` (1 MB is 1024 x 1024 bytes), or a number of bytes."""
Folder = Annotated[str | os.PathLike[str], instance_of(str | os.PathLike, "a folder")]
