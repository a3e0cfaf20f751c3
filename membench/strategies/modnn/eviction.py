"""moDNN's offloading schemes: neighbouring pieces of a pool that are evicted to make room (Section 5.2.1).

A scheme is a range of neighbouring pieces that is large enough. All ranges grow together, one piece at a time, so that
a pool of thousands of pieces is searched in a few steps over arrays.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The pieces of a pool in the order of their addresses; each array has one element per piece.

    Attributes:
        stays: whether a block lies there that may not be evicted.
        evicted_bytes: size of the block that would be evicted; 0 where there is none.
        is_copied: whether eviction has to copy that block: the host has no copy, and none has been started.
        ready_s: when such a copy could start.
        offload_time_s: seconds that it takes.
        on_host_s: when a copy that has been started is done; 0 where there is none.
    """

    size_bytes: Floats
    stays: Booleans
    evicted_bytes: Integers
    is_copied: Booleans
    ready_s: Floats
    offload_time_s: Floats
    on_host_s: Floats


@dataclass(frozen=True, slots=True)
class Scheme:
    """Neighbouring pieces, from `first` up to but not including `end`.

    Attributes:
        at_s: when all of their blocks are on the host.
        copy_free_s: when the copy stream is free again.
    """

    first: int
    end: int
    at_s: float
    copy_free_s: float


def best_scheme(neighbours: Neighbours, needed_bytes: int, *, compute_s: float, copy_free_s: float) -> Scheme | None:
    """Return the scheme that delays computing least; among equals the one with fewest bytes, then the first one.

    For each first piece only the shortest range that is large enough is considered. A range is dropped once it is
    not better than the best so far: as it grows, it is done later and moves more.

    Args:
        compute_s: computing is delayed only by copies that end after this time.
        copy_free_s: when the copy stream is free.
    """
    count = len(neighbours.size_bytes)
    first = end = np.arange(count)
    found_bytes, at_s, copy_s = np.zeros(count), np.zeros(count), np.full(count, copy_free_s)
    evicted_bytes = np.zeros(count, dtype=np.int64)
    best: Scheme | None = None
    best_rank: tuple[float, ...] = (np.inf, np.inf, count)
    while len(first):
        is_copied = neighbours.is_copied[end]
        copied_s = np.maximum(copy_s, neighbours.ready_s[end]) + neighbours.offload_time_s[end]
        copy_s = np.where(is_copied, copied_s, copy_s)
        at_s = np.maximum(at_s, np.where(is_copied, copy_s, neighbours.on_host_s[end]))
        evicted_bytes = evicted_bytes + neighbours.evicted_bytes[end]
        found_bytes = found_bytes + neighbours.size_bytes[end]
        stays = neighbours.stays[end]
        end = end + 1
        rank = np.maximum(at_s, compute_s), evicted_bytes, first
        is_complete = ~stays & (found_bytes >= needed_bytes)
        better = np.flatnonzero(is_complete & _is_less(rank, best_rank))
        if len(better):
            least = _least(rank, better)
            best_rank = tuple(key[least].item() for key in rank)
            best = Scheme(int(first[least]), int(end[least]), float(at_s[least]), float(copy_s[least]))
        grows = ~stays & ~is_complete & (end < count) & _is_less(rank, best_rank)
        first, end, evicted_bytes = first[grows], end[grows], evicted_bytes[grows]
        found_bytes, at_s, copy_s = found_bytes[grows], at_s[grows], copy_s[grows]
    return best


def _is_less(rank: tuple[NDArray[Any], ...], other: tuple[float, ...]) -> Booleans:
    """Return where a tuple of arrays is less than a tuple of numbers, as tuples are compared."""
    less = np.zeros(len(rank[0]), dtype=np.bool_)
    for own, its in zip(reversed(rank), reversed(other), strict=True):
        less = (own < its) | ((own == its) & less)
    return less


def _least(rank: tuple[NDArray[Any], ...], positions: Integers) -> int:
    """Return the first of these positions at which a tuple of arrays is least, as tuples are compared."""
    for key in rank:
        of_positions = key[positions]
        positions = positions[of_positions == of_positions.min()]
    return int(positions[0])
