"""The arena: one pool of device memory in which every block has a planned address.

`Arena` serves memory as moDNN's memory manager does: a free piece of exactly the size if there is one, else the first
that is large enough (Section 4.2). `pack` plans the addresses of a finished schedule, either in that way or with the whole
program in view.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from math import inf

import numpy as np
from numpy.typing import NDArray

from membench.core.offsets import Offsets
from membench.core.schedule import Schedule
from membench.core.task_graph import Block
from membench.planning.liveness import residencies
from membench.planning.pool import Pool, aligned


@dataclass(frozen=True, slots=True)
class Segments:
    """The pieces of an arena in the order of their addresses, in use or free; an element of each array for each piece.

    The last free one of an arena without a capacity is infinite.
    """

    addresses: NDArray[np.int64]
    size_bytes: NDArray[np.float64]
    is_free: NDArray[np.bool_]


class Arena(Pool):
    """One pool: exact size first, then first fit. It does not hold results, which outlive the step.

    Sizes are multiples of `ALIGNMENT_BYTES`. What is held is everything up to the highest address in use so far.

    Args:
        capacity_bytes: of the pool; without it there is always room.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._size_at: dict[int, int] = {}  # of pieces in use
        self._capacity_bytes = inf if capacity_bytes is None else capacity_bytes
        self._gaps: list[int] = []  # where free pieces begin, sorted
        self._gap_end: dict[int, float] = {}
        self._gaps_of_size: Counter[float] = Counter()
        self._add_gap(0, self._capacity_bytes)
        self._extent_bytes = 0

    def serves(self, block: Block) -> bool:
        return block.is_transient

    @property
    def held_bytes(self) -> int:
        return self._extent_bytes

    def allocate(self, size_bytes: int) -> int:
        """Take memory and return its address.

        Raises:
            MemoryError: there is no room; the strategy is to make it first.
        """
        if not size_bytes:
            return 0
        address = self._find(aligned(size_bytes))
        if address is None:
            raise MemoryError(f"the arena has no free piece of {size_bytes} bytes")
        self.place(address, size_bytes)
        return address

    def place(self, address: int, size_bytes: int) -> None:
        """Take memory at an address, the begin of a free piece or within one."""
        size_bytes = aligned(size_bytes)
        start = self._gaps[bisect_right(self._gaps, address) - 1]
        end = self._remove_gap(start)
        for piece, piece_end in ((start, address), (address + size_bytes, end)):
            if piece_end > piece:
                self._add_gap(piece, piece_end)
        self._size_at[address] = size_bytes
        self._extent_bytes = max(self._extent_bytes, address + size_bytes)

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
        """Return the position of the first of these that finds no room, if they are served one after another."""
        extent_bytes = self._extent_bytes
        taken: list[tuple[int, int]] = []
        for size_bytes in sizes_bytes:
            if size_bytes and self._find(aligned(size_bytes)) is None:
                break
            taken.append((self.allocate(size_bytes), size_bytes))
        for address, size_bytes in reversed(taken):
            self.free(address, size_bytes)
        self._extent_bytes = extent_bytes
        return len(taken) if len(taken) < len(sizes_bytes) else None

    def segments(self) -> Segments:
        """Return what the arena consists of."""
        addresses = np.sort(np.array([*self._size_at, *self._gaps], dtype=np.int64))
        size_bytes = np.diff(addresses, append=self._capacity_bytes)
        is_free = np.isin(addresses, self._gaps, assume_unique=True)
        return Segments(addresses, size_bytes, is_free)

    def _find(self, size_bytes: int) -> int | None:
        """Return where the first free piece of exactly the size begins, or else the first larger one."""
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
        """Forget a free piece and return where it ended."""
        end = self._gap_end.pop(start)
        del self._gaps[bisect_left(self._gaps, start)]
        self._gaps_of_size[end - start] -= 1
        return end


class Packing(StrEnum):
    """How addresses are chosen."""

    FIRST_FIT = "first_fit"  # as the program runs: exact size, then first fit (moDNN)
    LARGEST_FIRST = "largest_first"  # the program known: large blocks lowest, small ones around them


@dataclass(frozen=True, slots=True)
class _Residency:
    block: int
    size_bytes: int
    begin: int
    end: int


def pack(schedule: Schedule, packing: Packing) -> Offsets:
    """Plan an address for every block each time that it is resident; workspaces and results lie elsewhere."""
    residencies_ = list(_residencies(schedule))
    place: dict[Packing, Callable[[list[_Residency]], list[int]]] = {
        Packing.FIRST_FIT: _first_fit,
        Packing.LARGEST_FIRST: _largest_first,
    }
    addresses: dict[int, list[int]] = {}
    extent_bytes = 0
    for residency, address in zip(residencies_, place[packing](residencies_), strict=True):
        addresses.setdefault(residency.block, []).append(address)
        extent_bytes = max(extent_bytes, address + aligned(residency.size_bytes))
    return Offsets({b: tuple(a) for b, a in addresses.items()}, extent_bytes, _most_used_bytes(residencies_))


def _residencies(schedule: Schedule) -> list[_Residency]:
    """Return every residency, in the order in which they begin."""
    blocks = schedule.graph.blocks
    began: dict[int, int] = {}
    ended: dict[int, int] = {}
    events = [event for event in residencies(schedule) if blocks[event[0]].is_transient]
    for position, (block, begins) in enumerate(events):
        if begins:
            began[block] = position
        else:
            ended[began.pop(block)] = position
    return [
        _Residency(block, blocks[block].size_bytes, position, ended.get(position, len(events)))
        for position, (block, begins) in enumerate(events)
        if begins
    ]


def _first_fit(residencies_: list[_Residency]) -> list[int]:
    arena = Arena()
    addresses: list[int] = []
    ends = sorted((residency.end, number) for number, residency in enumerate(residencies_))
    gone = 0
    for residency in residencies_:
        while gone < len(ends) and ends[gone][0] < residency.begin:
            number = ends[gone][1]
            arena.free(addresses[number], residencies_[number].size_bytes)
            gone += 1
        addresses.append(arena.allocate(residency.size_bytes))
    return addresses


def _largest_first(residencies_: list[_Residency]) -> list[int]:
    """Give the largest block the lowest address that is free for as long as it is resident, then the next (greedy by size)."""
    order = sorted(
        range(len(residencies_)), key=lambda n: (-residencies_[n].size_bytes, residencies_[n].begin)
    )
    addresses = [0] * len(residencies_)
    placed: list[tuple[int, int, _Residency]] = []  # address, end, by address
    for number in order:
        residency = residencies_[number]
        size_bytes = aligned(residency.size_bytes)
        address = 0
        for start, end, other in placed:
            if other.begin < residency.end and residency.begin < other.end:
                if start - address >= size_bytes:
                    break
                address = max(address, end)
        addresses[number] = address
        if size_bytes:
            insort(placed, (address, address + size_bytes, residency), key=lambda item: item[:2])
    return addresses


def _most_used_bytes(residencies_: list[_Residency]) -> int:
    changes = [(r.begin, aligned(r.size_bytes)) for r in residencies_]
    changes += [(r.end, -aligned(r.size_bytes)) for r in residencies_]
    return max(accumulate((change for _, change in sorted(changes)), initial=0))
