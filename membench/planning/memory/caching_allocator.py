"""PyTorch's caching allocator of CUDA memory, simulated: what it reserves from the device, fragmentation included.

Its behaviour is that of PyTorch 1.0 to 2.8 as its notes on CUDA semantics ("Memory management") and its source
(``c10/cuda/CUDACachingAllocator.cpp``) describe it:

- A request is rounded up to `UNIT_BYTES`. Each stream has a pool for requests of up to `SMALL_REQUEST_BYTES`, and one
  for larger ones.
- The smallest free piece of the pool serves a request, of several the one with the lowest address. What is left of the
  piece becomes a free piece of its own, if it is large enough; otherwise it is wasted until the piece is freed.
- Without a free piece, the allocator grows: see `SegmentAllocator` and `ExpandableAllocator`. On a full device it first
  returns what it does not use.
- A freed piece merges with free neighbours of its segment. Memory is returned to the device only as above.

A piece that several streams use is freed at the position of its own stream: a schedule does so after that stream has
waited for the others (decision 3), so that PyTorch's delay for pieces marked with ``record_stream`` never occurs.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from membench.core.errors import OutOfMemory
from membench.core.graph.schedule import COMPUTE_STREAM
from membench.core.units import MIB

UNIT_BYTES = 512
SMALL_REQUEST_BYTES = MIB
"""The largest request that the pool of small pieces serves."""
SMALL_SEGMENT_BYTES = 2 * MIB
"""Of a segment, and of a page, of the pool of small pieces."""
LARGE_SEGMENT_BYTES = 20 * MIB
"""Of a segment for requests below `OWN_SEGMENT_BYTES`, and of a page of the pool of large pieces."""
OWN_SEGMENT_BYTES = 10 * MIB
"""Requests from this size on take a segment of their own size."""
OWN_SEGMENT_UNIT_BYTES = 2 * MIB
"""Unit to which the size of such a segment is rounded up."""


@dataclass(slots=True, eq=False)
class Piece:
    """Consecutive memory of one segment: in use, free, or an address range without memory.

    Attributes:
        before: the neighbour at lower addresses in the same segment.
        behind: the neighbour at higher addresses in the same segment.
        is_free: it is in its pool.
        is_mapped: False: an address range of an expandable segment that holds no memory.
    """

    address: int
    size_bytes: int
    pool: "PiecePool"
    before: "Piece | None" = None
    behind: "Piece | None" = None
    is_free: bool = False
    is_mapped: bool = True

    def split(self, size_bytes: int) -> "Piece":
        """Shorten to a size and return the rest, a neighbour behind that is not free yet."""
        rest = Piece(self.address + size_bytes, self.size_bytes - size_bytes, self.pool, self, self.behind)
        rest.is_mapped = self.is_mapped
        if self.behind:
            self.behind.before = rest
        self.behind, self.size_bytes = rest, size_bytes
        return rest

    def absorb_behind(self) -> None:
        """Grow by the neighbour behind, which ceases to exist."""
        assert self.behind, "the caller has seen a neighbour"
        self.size_bytes += self.behind.size_bytes
        self.behind = self.behind.behind
        if self.behind:
            self.behind.before = self


class SortedPieces:
    """Pieces by size, then address."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int]] = []
        self._at: dict[int, Piece] = {}

    def __iter__(self) -> Iterator[Piece]:
        return (self._at[address] for _, address in tuple(self._keys))

    def add(self, piece: Piece) -> None:
        """Add a piece."""
        insort(self._keys, (piece.size_bytes, piece.address))
        self._at[piece.address] = piece

    def remove(self, piece: Piece) -> None:
        """Remove a piece, whose size has not changed since it was added."""
        del self._at[piece.address]
        del self._keys[bisect_left(self._keys, (piece.size_bytes, piece.address))]

    def at_least(self, size_bytes: int) -> Iterator[Piece]:
        """Yield the pieces of at least a size, the smallest first; nothing may change meanwhile."""
        for position in range(bisect_left(self._keys, (size_bytes, -1)), len(self._keys)):
            yield self._at[self._keys[position][1]]


class PiecePool:
    """The free pieces of one stream, for small or for large requests.

    Attributes:
        free: free pieces that hold memory.
        unmapped: address ranges of expandable segments that hold none.
    """

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.free = SortedPieces()
        self.unmapped = SortedPieces()

    @property
    def segment_bytes(self) -> int:
        """Size of a segment for requests that do not get one of their own, and of an expandable segment's pages."""
        return SMALL_SEGMENT_BYTES if self.is_small else LARGE_SEGMENT_BYTES

    def add(self, piece: Piece) -> Piece:
        """Make a piece free, merge it with its free neighbours and return the result."""
        piece.is_free = True
        for neighbour in (piece.before, piece.behind):
            if neighbour and neighbour.is_free and neighbour.is_mapped == piece.is_mapped:
                self._pieces_like(piece).remove(neighbour)
                piece = piece if piece.address < neighbour.address else neighbour
                piece.absorb_behind()
        self._pieces_like(piece).add(piece)
        return piece

    def take(self, piece: Piece) -> None:
        """Remove a free piece, or an address range."""
        piece.is_free = False
        self._pieces_like(piece).remove(piece)

    def _pieces_like(self, piece: Piece) -> SortedPieces:
        return self.free if piece.is_mapped else self.unmapped


class CachingAllocator(ABC):
    """The part of the allocator that does not depend on how it grows.

    Attributes:
        requested_bytes: size of the requests in use, as they were made.
        allocated_bytes: size of the pieces in use; PyTorch's ``torch.cuda.memory_allocated``.
        reserved_bytes: what the device has given; PyTorch's ``torch.cuda.memory_reserved``.

    Args:
        capacity_bytes: the most that the device gives; None: any amount.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._pools: dict[tuple[str, bool], PiecePool] = {}
        self._used: dict[int, tuple[Piece, int]] = {}  # by address: a piece in use, and the request's size
        self._end = 0  # of all addresses so far; none is used twice
        self.requested_bytes = self.allocated_bytes = self.reserved_bytes = 0

    def allocate(self, size_bytes: int, *, stream: str = COMPUTE_STREAM) -> int:
        """Serve a request of at least one byte and return its address.

        Raises:
            OutOfMemory: there is no room, even after all unused memory was returned to the device.
        """
        unit_bytes = rounded(size_bytes, UNIT_BYTES)
        is_small = unit_bytes <= SMALL_REQUEST_BYTES
        pool = self._pools.get((stream, is_small))
        if pool is None:
            pool = self._pools[stream, is_small] = PiecePool(is_small=is_small)
        piece = self._best_fit(pool, unit_bytes)
        if piece:
            pool.take(piece)
        else:
            piece = self._grown(pool, unit_bytes)
        if self._is_split(piece, unit_bytes):
            pool.add(piece.split(unit_bytes))
        self._used[piece.address] = piece, size_bytes
        self.requested_bytes += size_bytes
        self.allocated_bytes += piece.size_bytes
        return piece.address

    def free(self, address: int) -> None:
        """Free what `allocate` returned."""
        piece, size_bytes = self._used.pop(address)
        self.requested_bytes -= size_bytes
        self.allocated_bytes -= piece.size_bytes
        piece.pool.add(piece)

    @abstractmethod
    def release_cached(self) -> None:
        """Return all unused memory to the device that can be returned; PyTorch's ``torch.cuda.empty_cache``."""

    @property
    def pieces(self) -> list[Piece]:
        """All pieces that hold memory, in use or free, by address."""
        free = (piece for pool in self._pools.values() for piece in pool.free)
        return sorted([*free, *(piece for piece, _ in self._used.values())], key=lambda piece: piece.address)

    def _grown(self, pool: PiecePool, unit_bytes: int) -> Piece:
        size_bytes = segment_bytes(unit_bytes)
        for prepare in (None, lambda: self._release_for(pool, unit_bytes), self.release_cached):
            if prepare:
                prepare()
            if piece := self._grow(pool, size_bytes):
                return piece
        assert self._capacity_bytes is not None, "only a full device gives nothing"
        raise OutOfMemory(needed_bytes=self.reserved_bytes + size_bytes, capacity_bytes=self._capacity_bytes)

    def _takes_from_device(self, size_bytes: int) -> bool:
        """Reserve memory if the device has it; return whether it had."""
        if self._capacity_bytes is not None and self.reserved_bytes + size_bytes > self._capacity_bytes:
            return False
        self.reserved_bytes += size_bytes
        return True

    @abstractmethod
    def _best_fit(self, pool: PiecePool, unit_bytes: int) -> Piece | None:
        """Return the free piece that serves a request."""

    @abstractmethod
    def _is_split(self, piece: Piece, unit_bytes: int) -> bool:
        """Return whether what a request leaves of a piece becomes a piece of its own."""

    @abstractmethod
    def _grow(self, pool: PiecePool, size_bytes: int) -> Piece | None:
        """Return a piece of at least a size with memory from the device, in no pool; None: the device is full."""

    @abstractmethod
    def _release_for(self, pool: PiecePool, unit_bytes: int) -> None:
        """Return some unused memory to the device, before all of it is returned."""


def segment_bytes(unit_bytes: int) -> int:
    """Return how much memory a request asks of the device where no free piece serves it.

    Args:
        unit_bytes: the request, in whole units.
    """
    if unit_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if unit_bytes < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return rounded(unit_bytes, OWN_SEGMENT_UNIT_BYTES)


def rounded(size_bytes: int, unit_bytes: int) -> int:
    """Return a size rounded up to a unit."""
    return -(-size_bytes // unit_bytes) * unit_bytes
