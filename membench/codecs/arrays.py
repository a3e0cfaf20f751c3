"""Arrays side by side in one buffer of bytes, and operations on them that allocate nothing."""

from functools import cache

import torch
from torch import Tensor

Array = tuple[torch.dtype, int]
"""Its element type, and how many."""


def arrays_bytes(*arrays: Array) -> int:
    return sum(dtype.itemsize * count for dtype, count in arrays)


def carve(buffer: Tensor, *arrays: Array) -> list[Tensor]:
    """Return views of a buffer, one after another; larger elements first, so that each lies where it may."""
    views: list[Tensor] = []
    at = 0
    for dtype, count in arrays:
        end = at + dtype.itemsize * count
        views.append(buffer[at:end].view(dtype))
        at = end
    return views


@cache
def scalar(number: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return a number as an operand: with one of Python's an operator would allocate memory for it on the CPU."""
    return torch.tensor(number, dtype=dtype)
