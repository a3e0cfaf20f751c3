"""The arena: one pool of device memory in which every block has a planned address.

`Arena` serves memory as moDNN's memory manager does: a free piece of exactly the size if there is one, otherwise the
first that is large enough (Section 3.3).
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from membench.core.graph.task_graph import Block
from membench.planning.pool import Pool, aligned


class Arena(Pool):
    """One pool: exact size first, then first fit. Results, which outlive the step, lie outside of it.

    Sizes are multiples of `ALIGNMENT_BYTES`. Held is everything up to the highest address used so far.

    Args:
        capacity_bytes: the pool's capacity; None: unlimited.
    """

    held_bytes = 0

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._size_at: dict[int, int] = {}  # of pieces in use
        self._capacity_bytes = inf if capacity_bytes is None else capacity_bytes
        self._gaps: list[int] = []  # addresses of free pieces, sorted
        self._gap_end: dict[int, float] = {}
        self._gaps_of_size: Counter[float] = Counter()
        self._add_gap(0, self._capacity_bytes)

    def serves(self, block: Block) -> bool:
        return block.is_transient

    def allocate(self, size_bytes: int) -> int:
        """Take memory and return its address.

        Raises:
            MemoryError: no free piece is large enough; the strategy has to make room first.
        """
        if not size_bytes:
            return 0
        address = self._find(aligned(size_bytes))
        if address is None:
            raise MemoryError(f"the arena has no free piece of {size_bytes} bytes")
        self.allocate_at(address, size_bytes)
        return address

    def allocate_at(self, address: int, size_bytes: int) -> None:
        """Take memory at an address, which lies in a free piece."""
        size_bytes = aligned(size_bytes)
        start = self._gaps[bisect_right(self._gaps, address) - 1]
        end = self._remove_gap(start)
        for piece, piece_end in ((start, address), (address + size_bytes, end)):
            if piece_end > piece:
                self._add_gap(piece, piece_end)
        self._size_at[address] = size_bytes
        self.held_bytes = max(self.held_bytes, address + size_bytes)

    def free(self, address: int, size_bytes: int) -> None:
        if not size_bytes:
            return
        start, end = address, float(address + self._size_at.pop(address))
        if end in self._gap_end:
            end = self._remove_gap(int(end))
        position = bisect_left(self._gaps, address)
        if position and self._gap_end[self._gaps[position - 1]] == address:
            start = self._gaps[position - 1]
            self._remove_gap(start)
        self._add_gap(start, end)

    def first_without_room(self, sizes_bytes: Sequence[int]) -> int | None:
        """Return the position of the first size without room if served one by one, None if all have room."""
        extent_bytes = self.held_bytes
        taken: list[tuple[int, int]] = []
        for size_bytes in sizes_bytes:
            if size_bytes and self._find(aligned(size_bytes)) is None:
                break
            taken.append((self.allocate(size_bytes), size_bytes))
        for address, size_bytes in reversed(taken):
            self.free(address, size_bytes)
        self.held_bytes = extent_bytes
        return len(taken) if len(taken) < len(sizes_bytes) else None

    def pieces(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
        """Return address and bytes of each piece, and whether it is free, in order; the last may be infinite."""
        addresses = np.sort(np.array([*self._size_at, *self._gaps], dtype=np.int64))
        size_bytes = np.diff(addresses, append=self._capacity_bytes)
        is_free = np.isin(addresses, self._gaps, assume_unique=True)
        return addresses, size_bytes, is_free

    def _find(self, size_bytes: int) -> int | None:
        """Return the address of the first free piece of exactly the size, otherwise of the first larger one."""
        takes_larger = not self._gaps_of_size[size_bytes]
        for start in self._gaps:
            gap_bytes = self._gap_end[start] - start
            if gap_bytes == size_bytes or (takes_larger and gap_bytes > size_bytes):
                return start
        return None

    def _add_gap(self, start: int, end: float) -> None:
        insort(self._gaps, start)
        self._gap_end[start] = end
        self._gaps_of_size[end - start] += 1

    def _remove_gap(self, start: int) -> float:
        """Remove a free piece and return its end."""
        end = self._gap_end.pop(start)
        del self._gaps[bisect_left(self._gaps, start)]
        self._gaps_of_size[end - start] -= 1
        return end
