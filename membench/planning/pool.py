"""Pools: memory that a method allocates, and in which blocks lie; its unused part is held as well.

A pool only counts bytes. `ScheduleBuilder` turns its unused bytes into `Hold` instructions.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort

from membench.core.graph.task_graph import Block
from membench.core.units import KIB, MIB

ALIGNMENT_BYTES = 256
"""Unit to which CUDA allocators round sizes up."""

LARGE_ALLOCATION_BYTES = 512 * KIB
"""Allocations above this size are multiples of `LARGE_GRANULARITY_BYTES`."""

LARGE_GRANULARITY_BYTES = MIB
"""Unit of large allocations by the CUDA driver; measured for later drivers than the papers', see `allocated`."""

FIRST_REGION_BYTES = MIB
"""The first region that TensorFlow's allocator takes from the device where it grows with demand."""

LARGEST_WASTE_BYTES = 128 * MIB
"""TensorFlow's allocator always splits a piece if the rest would be at least this large."""


class Pool(ABC):
    """Device memory from which blocks and workspaces are allocated."""

    def serves(self, block: Block) -> bool:
        """Return whether a block lies in the pool, or has memory of its own."""
        return True

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes that the pool holds now, used and unused."""

    @abstractmethod
    def allocate(self, size_bytes: int) -> int:
        """Take memory and return its address, in bytes from the start of the pool."""

    @abstractmethod
    def free(self, address: int, size_bytes: int) -> None:
        """Give back what `allocate` returned for that size."""


class PoolUse:
    """What the blocks of a step take from a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._address: dict[int, int] = {}  # by block
        self._used_bytes = 0

    def take(self, block: Block) -> None:
        """Take memory for a block that the pool serves."""
        if self._pool.serves(block):
            self._address[block.index] = self._pool.allocate(block.size_bytes)
            self._used_bytes += block.size_bytes

    def take_for_good(self, size_bytes: int) -> None:
        """Take memory that is never given back."""
        self._pool.allocate(size_bytes)
        self._used_bytes += size_bytes

    def give_back(self, block: int, size_bytes: int) -> None:
        """Give back what a block has taken, if anything."""
        if block in self._address:
            self._pool.free(self._address.pop(block), size_bytes)
            self._used_bytes -= size_bytes

    def hand_over(self, dead: int, block: int) -> None:
        """Let a block have what a dead one has taken."""
        if dead in self._address:
            self._address[block] = self._address.pop(dead)

    def unused_bytes(self, workspace_bytes: int) -> int:
        """Return what the pool holds, unused, while it has this workspace too."""
        address = self._pool.allocate(workspace_bytes)
        unused_bytes = self._pool.held_bytes - self._used_bytes - workspace_bytes
        self._pool.free(address, workspace_bytes)
        return unused_bytes


class FixedPool(Pool):
    """Memory that is allocated once for the whole run; it holds more than its size only while its blocks need more."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._used_bytes = 0

    @property
    def held_bytes(self) -> int:
        return max(self._size_bytes, self._used_bytes)

    def allocate(self, size_bytes: int) -> int:
        self._used_bytes += size_bytes
        return 0

    def free(self, address: int, size_bytes: int) -> None:
        self._used_bytes -= size_bytes


class BestFitPool(Pool):
    """Grows on demand and never shrinks; serves the smallest free piece that is large enough.

    Best fit with coalescing, as TensorFlow's allocator (its `BFCAllocator`). Neighbours merge when they are free. A
    piece is split only where the rest is at least as large as the request, or reaches `LARGEST_WASTE_BYTES`; otherwise
    it is handed out whole. Pieces are multiples of `ALIGNMENT_BYTES`. So the extent includes fragmentation, between the
    pieces and inside them.

    Args:
        doubles_up_to_bytes: it grows by regions, each at least twice as large as the one before and the last one as
            large as what is left of this size (``BFCAllocator::Extend``), and pieces merge within their region only.
            Beyond that size, and with 0 always, it grows by what it lacks.
    """

    def __init__(self, *, doubles_up_to_bytes: int = 0) -> None:
        self._extent_bytes = 0
        self._doubles_up_to_bytes = doubles_up_to_bytes
        self._next_region_bytes = FIRST_REGION_BYTES
        self._region_starts: set[int] = set()
        self._taken: dict[int, int] = {}  # address -> size of pieces in use
        self._by_size: list[tuple[int, int]] = []  # (size, address) of free pieces, sorted
        self._size_at: dict[int, int] = {}  # of free pieces, by address
        self._start_before: dict[int, int] = {}  # of free pieces, by the address where they end

    @property
    def held_bytes(self) -> int:
        return self._extent_bytes

    def allocate(self, size_bytes: int) -> int:
        size_bytes = aligned(size_bytes)
        if not size_bytes:
            return self._extent_bytes
        position = bisect_left(self._by_size, (size_bytes, 0))
        if position == len(self._by_size) and self._extent_bytes + size_bytes <= self._doubles_up_to_bytes:
            self._add_region(size_bytes)
            position = bisect_left(self._by_size, (size_bytes, 0))
        if position < len(self._by_size):
            piece_bytes, address = self._by_size[position]
            self._remove(address)
            rest_bytes = piece_bytes - size_bytes
            if self._splits(size_bytes, rest_bytes):
                self._insert(address + size_bytes, rest_bytes)
            else:
                size_bytes = piece_bytes
        else:
            address = self._start_before.get(self._extent_bytes, self._extent_bytes)
            if address < self._extent_bytes:  # the last piece is free: grow by what it lacks
                self._remove(address)
            self._extent_bytes = address + size_bytes
        self._taken[address] = size_bytes
        return address

    def free(self, address: int, size_bytes: int) -> None:
        if not size_bytes:
            return
        size_bytes = self._taken.pop(address)
        end = address + size_bytes
        if end in self._size_at and end not in self._region_starts:
            size_bytes += self._size_at[end]
            self._remove(end)
        if address in self._start_before and address not in self._region_starts:
            start = self._start_before[address]
            size_bytes += self._size_at[start]
            self._remove(start)
            address = start
        self._insert(address, size_bytes)

    def _splits(self, size_bytes: int, rest_bytes: int) -> bool:
        """Return whether the rest of a piece stays in the pool when a part of it is served."""
        return rest_bytes >= min(size_bytes, LARGEST_WASTE_BYTES)

    def _add_region(self, size_bytes: int) -> None:
        """Take a region that is large enough for a request from the device."""
        is_large_enough = size_bytes <= self._next_region_bytes
        while self._next_region_bytes < size_bytes:
            self._next_region_bytes *= 2
        region_bytes = min(self._next_region_bytes, self._doubles_up_to_bytes - self._extent_bytes)
        if is_large_enough:
            self._next_region_bytes *= 2
        self._region_starts.add(self._extent_bytes)
        self._insert(self._extent_bytes, region_bytes)
        self._extent_bytes += region_bytes

    def _insert(self, address: int, size_bytes: int) -> None:
        insort(self._by_size, (size_bytes, address))
        self._size_at[address] = size_bytes
        self._start_before[address + size_bytes] = address

    def _remove(self, address: int) -> None:
        size_bytes = self._size_at.pop(address)
        del self._start_before[address + size_bytes]
        del self._by_size[bisect_left(self._by_size, (size_bytes, address))]


def aligned(size_bytes: int) -> int:
    """Return the size rounded up to the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def allocated(size_bytes: int) -> int:
    """Return the device memory that an allocation of its own takes: whole MiB above 512 KiB.

    Measured by others for drivers of the 500 series; for the papers' CUDA 7.5 no figure is published, so it is assumed.
    """
    if size_bytes <= LARGE_ALLOCATION_BYTES:
        return size_bytes
    return -(-size_bytes // LARGE_GRANULARITY_BYTES) * LARGE_GRANULARITY_BYTES
