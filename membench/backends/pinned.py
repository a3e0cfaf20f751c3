"""Page-locked host memory of exactly the size asked for.

torch's own pinned allocator rounds each request up to a power of two, up to twice the memory. Here a piece is made of
whole pages, locked once and kept: in the steady state there is no locking.
"""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from membench.backends.pages import pages
from membench.core.errors import MembenchError


class PinnedMemory:
    """Pieces of page-locked host memory; they stay locked until `close` or until this object is collected.

    Args:
        device: that copies it. CUDA's and ROCm's runtimes lock memory that exists; for others torch's allocator makes
            it, and rounds as it does.

    Attributes:
        pieces: whole, each with the function that unlocks it.
    """

    def __init__(self, device: torch.device) -> None:
        self._locks_pages = locks_pages(device)
        self.pieces: list[tuple[Tensor, _Unlock]] = []
        self._finalizer = weakref.finalize(self, _unlock, self.pieces)
        self._finalizer.atexit = False  # a process that ends unlocks its memory itself

    @property
    def size_bytes(self) -> int:
        """Locked bytes, in whole pages where pages are locked."""
        return sum(piece.numel() for piece, _ in self.pieces)

    def take(self, size_bytes: int) -> Tensor:
        """Return unfilled memory as a tensor of bytes.

        Raises:
            MembenchError: the driver refuses to lock that much.
        """
        if not self._locks_pages:
            self.pieces.append((torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True), _nothing))
            return self.pieces[-1][0]
        piece = pages(size_bytes)
        pages_bytes = piece.numel()
        runtime = torch.cuda.cudart()
        error = runtime.cudaHostRegister(piece.data_ptr(), pages_bytes, 0)
        if int(error):
            raise MembenchError(
                f"the driver did not lock {pages_bytes:,} bytes of host memory in addition to the {self.size_bytes:,} "
                f"locked already (CUDA error {int(error)}); raise `ulimit -l` or the container's memory, or offload "
                f"less"
            )
        self.pieces.append((piece, runtime.cudaHostUnregister))
        return piece[:size_bytes]

    def close(self) -> None:
        """Unlock every piece; all copies must have ended."""
        self._finalizer()


def locks_pages(device: torch.device) -> bool:
    """Return whether the device's runtime, as torch offers it, locks memory that exists."""
    return device.type == "cuda"


_Unlock = Callable[[int], object]


def _nothing(address: int) -> None:
    """Do nothing: torch's allocator unlocks its memory when the tensor goes."""


def _unlock(pieces: list[tuple[Tensor, _Unlock]]) -> None:
    while pieces:
        piece, unlock = pieces.pop()
        unlock(piece.data_ptr())
