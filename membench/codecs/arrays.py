"""Arrays one after another in one buffer of bytes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

Array = tuple[torch.dtype, int]
"""Element type and number of elements."""


class Rows(NamedTuple):
    """The arrays of a tensor in compressed rows: torch tensors, or numpy arrays of the same memory."""

    block_starts: Any  # non-zeros before each block
    row_ends: Any  # non-zeros from the block's start to each row's end
    codes: Any  # of the values
    columns: Any


def arrays_bytes(*arrays: Array) -> int:
    """Return the bytes of some arrays together."""
    return sum(dtype.itemsize * count for dtype, count in arrays)


def carve(buffer: Tensor, *arrays: Array) -> list[Tensor]:
    """Return consecutive views of a buffer; arrays with larger elements come first, for alignment."""
    views: list[Tensor] = []
    at = 0
    for dtype, count in arrays:
        end = at + dtype.itemsize * count
        views.append(buffer[at:end].view(dtype))
        at = end
    return views
