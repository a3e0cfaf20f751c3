"""Host memory in whole pages: what a driver can lock, and what a disk reads and writes without a copy."""

import mmap

import torch
from torch import Tensor

from membench.planning.host_memory.host_places import in_pages


def pages(size_bytes: int) -> Tensor:
    """Return unfilled memory of that many bytes, rounded up to whole pages, as a tensor of bytes."""
    return torch.frombuffer(mmap.mmap(-1, in_pages(size_bytes)), dtype=torch.uint8)
