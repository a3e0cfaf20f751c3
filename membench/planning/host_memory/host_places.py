"""Places of buffers in one piece of host memory, for backends that lock it once.

Largest buffers first, each into the lowest gap between those that are open at the same time ("greedy by size for offset
calculation": Pisarchyk and Lee, Efficient memory management for deep neural net inference, 2020, Section 5.2).
"""

import mmap
from dataclasses import dataclass

import numpy as np

from membench.core.graph.schedule import Drop, Load, Offload, Schedule

PAGE_BYTES = mmap.PAGESIZE
"""Places start at a page, so that a disk can read into them without a copy."""


@dataclass(frozen=True)
class HostPlaces:
    """Places of the buffers that a step drops; others are kept and are not in here.

    Attributes:
        size_bytes: size of the piece of memory.
        starts: offset of each of a block's buffers, in the order in which the step opens them.
    """

    size_bytes: int
    starts: dict[int, tuple[int, ...]]


def in_pages(size_bytes: int) -> int:
    """Return a number of bytes, at least one, rounded up to whole pages."""
    return -(-max(1, size_bytes) // PAGE_BYTES) * PAGE_BYTES


def host_places(schedule: Schedule) -> HostPlaces:
    """Return a place for each buffer of a schedule that is dropped at some time."""
    opened = _openings(schedule)
    blocks = schedule.graph.blocks
    sizes = np.array([in_pages(blocks[block].size_bytes) for block, _, _ in opened], np.int64)
    first = np.array([start for _, start, _ in opened], np.int64)
    last = np.array([end for _, _, end in opened], np.int64)
    at = np.full(len(opened), -1, np.int64)
    for number in sorted(range(len(opened)), key=lambda n: (-sizes[n], first[n])):
        others = np.flatnonzero((at >= 0) & (first <= last[number]) & (first[number] <= last))
        place = 0
        for other in others[np.argsort(at[others], kind="stable")]:
            if at[other] - place >= sizes[number]:
                break
            place = max(place, int(at[other] + sizes[other]))
        at[number] = place
    starts: dict[int, tuple[int, ...]] = {}
    for (block, _, _), start in zip(opened, at, strict=True):
        starts[block] = (*starts.get(block, ()), int(start))
    return HostPlaces(int(max(at + sizes, default=0)), starts)


def _openings(schedule: Schedule) -> list[tuple[int, int, int]]:
    """Return (block, position where a buffer opens, position where it is dropped), in the order of opening."""
    dropped = {item.block for item in schedule.instructions if isinstance(item, Drop)}
    starts: dict[int, int] = {}
    found = []
    for position, item in enumerate(schedule.instructions):
        match item:
            case Load(block) | Offload(block) if block in dropped:
                starts.setdefault(block, position)
            case Drop(block):
                found.append((block, starts.pop(block), position))
    found += [(block, start, len(schedule)) for block, start in starts.items()]
    return sorted(found, key=lambda opening: opening[1])
