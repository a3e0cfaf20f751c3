"""Which neighbours have to leave a pool so that something has room: moDNN's offloading schemes (Section 4.3).

A scheme is a run of neighbouring segments that is large enough. All runs grow together, a segment at a time, so that a
pool of thousands of segments is searched in a few steps over arrays.
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
    """The segments of a pool in the order of their addresses, an element for each.

    Attributes:
        stays: somebody uses it and may not leave.
        leaving_bytes: of the block that would leave; 0 where nobody would.
        is_copied: that block has no copy on the host yet, nor one on its way.
        ready_s: when such a copy could start.
        offload_time_s: what it takes.
        on_host_s: when the copy on its way is done; 0 where there is none.
    """

    size_bytes: Floats
    stays: Booleans
    leaving_bytes: Integers
    is_copied: Booleans
    ready_s: Floats
    offload_time_s: Floats
    on_host_s: Floats


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring segments, from `first` to behind `end`.

    Attributes:
        at_s: when all of them are on the host.
        copy_free_s: when the stream of copies is free again.
    """

    first: int
    end: int
    at_s: float
    copy_free_s: float


def best_run(
    neighbours: Neighbours, needed_bytes: int, *, compute_s: float, copy_free_s: float
) -> Run | None:
    """Return the run that delays computing least; among equals the one with fewest bytes, then the first one.

    Of those that begin with a segment only the shortest is looked at that is large enough. A run is given up once it is
    no better than the best so far: as it grows, it is done later and moves more.

    Args:
        compute_s: until when computing is not delayed.
        copy_free_s: when the stream of copies is free.
    """
    count = len(neighbours.size_bytes)
    first = end = np.arange(count)
    found_bytes, at_s, copy_s = np.zeros(count), np.zeros(count), np.full(count, copy_free_s)
    leaving_bytes = np.zeros(count, dtype=np.int64)
    best: Run | None = None
    best_rank: tuple[float, ...] = (np.inf, np.inf, count)
    while len(first):
        is_copied = neighbours.is_copied[end]
        copied_s = np.maximum(copy_s, neighbours.ready_s[end]) + neighbours.offload_time_s[end]
        copy_s = np.where(is_copied, copied_s, copy_s)
        at_s = np.maximum(at_s, np.where(is_copied, copy_s, neighbours.on_host_s[end]))
        leaving_bytes = leaving_bytes + neighbours.leaving_bytes[end]
        found_bytes = found_bytes + neighbours.size_bytes[end]
        stays = neighbours.stays[end]
        end = end + 1
        rank = np.maximum(at_s, compute_s), leaving_bytes, first
        is_complete = ~stays & (found_bytes >= needed_bytes)
        better = np.flatnonzero(is_complete & _is_less(rank, best_rank))
        if len(better):
            run = _least(rank, better)
            best_rank = tuple(part[run].item() for part in rank)
            best = Run(int(first[run]), int(end[run]), float(at_s[run]), float(copy_s[run]))
        grows = ~stays & ~is_complete & (end < count) & _is_less(rank, best_rank)
        first, end, leaving_bytes = first[grows], end[grows], leaving_bytes[grows]
        found_bytes, at_s, copy_s = found_bytes[grows], at_s[grows], copy_s[grows]
    return best


def _is_less(rank: tuple[NDArray[Any], ...], other: tuple[float, ...]) -> Booleans:
    """Return where a tuple of arrays is less than a tuple of numbers, as tuples are compared."""
    less = np.zeros(len(rank[0]), dtype=np.bool_)
    for own, its in zip(reversed(rank), reversed(other), strict=True):
        less = (own < its) | ((own == its) & less)
    return less


def _least(rank: tuple[NDArray[Any], ...], positions: Integers) -> int:
    """Return at which of these positions a tuple of arrays is least, as tuples are compared; the first one among equals."""
    for part in rank:
        of_positions = part[positions]
        positions = positions[of_positions == of_positions.min()]
    return int(positions[0])
