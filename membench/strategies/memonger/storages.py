"""MXNet's memory plan: a block takes a whole storage that an earlier block has left."""

from bisect import bisect_left, insort

from membench.core.task_graph import RESULT_ROLES, Block
from membench.planning.pool import Pool

MATCH_RANGE = 16
"""Largest ratio between the sizes of a block and of the free storage that it takes (``NNVM_EXEC_MATCH_RANGE``)."""


class StoragePool(Pool):
    """Grows on demand and never shrinks; a storage is handed out whole, and never merged or split.

    The plan of MXNet's executor (dmlc/nnvm, ``src/pass/plan_memory.cc``): a block takes the smallest free storage that is
    large enough, up to `MATCH_RANGE` times its size. Without one, it takes the largest that is too small, down to that
    share of its size, which the plan then enlarges to the block's size. All is allocated before the run: the final extent
    counts from the beginning, and the peak is the same.
    """

    def __init__(self) -> None:
        self._size_bytes: list[int] = []  # of storages
        self._free: list[tuple[int, int]] = []  # (size, storage), sorted
        self._held_bytes = 0

    def serves(self, block: Block) -> bool:
        return block.role not in RESULT_ROLES

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def allocate(self, size_bytes: int) -> int:
        """Take a storage and return its number."""
        if not size_bytes:
            return len(self._size_bytes)
        smallest, fitting, too_large = (
            bisect_left(self._free, (bound, -1))
            for bound in (size_bytes // MATCH_RANGE, size_bytes, size_bytes * MATCH_RANGE + 1)
        )
        if smallest == too_large:
            self._size_bytes.append(size_bytes)
            self._held_bytes += size_bytes
            return len(self._size_bytes) - 1
        _, storage = self._free.pop(fitting if fitting < too_large else fitting - 1)
        lacking_bytes = max(0, size_bytes - self._size_bytes[storage])
        self._size_bytes[storage] += lacking_bytes
        self._held_bytes += lacking_bytes
        return storage

    def free(self, address: int, size_bytes: int) -> None:
        if not size_bytes:
            return
        insort(self._free, (self._size_bytes[address], address))
