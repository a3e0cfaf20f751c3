"""Arrays side by side in one buffer of bytes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

Array = tuple[torch.dtype, int]
"""Its element type, and how many."""


class Rows(NamedTuple):
    """The arrays of a map in compressed rows: of torch, or the same memory as arrays of numpy."""

    block_starts: Any  # non-zeros before each block
    row_ends: Any  # non-zeros from the block's start to each row's end
    codes: Any  # of the values
    columns: Any


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
