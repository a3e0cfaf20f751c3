"""The fixed region of memory that blocks share in turn (Layrub 3.3, "constant resource region").

Planned once, from a schedule that allocates on demand: the largest blocks get pieces first, and every further block
shares the smallest piece that is vacant whenever it is resident. The region then stays as it is for the whole run.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import RESULT_ROLES, TaskGraph
from membench.planning.memory.liveness import residencies

Interval = tuple[int, int]
"""First and last event of a residency, in the order of the program."""


@dataclass(frozen=True)
class Region:
    """Pieces of device memory, and the piece that each block always lies in."""

    piece_bytes: tuple[int, ...]
    pieces: dict[int, int]

    def piece_of(self, block: int) -> int | None:
        """Return the index of a block's piece; None where it is not part of the region."""
        return self.pieces.get(block)

    @property
    def total_bytes(self) -> int:
        return sum(self.piece_bytes)


@dataclass
class _Piece:
    size_bytes: int
    taken: list[Interval] = field(default_factory=list)  # sorted, disjoint

    def is_vacant(self, interval: Interval) -> bool:
        position = bisect_left(self.taken, interval)
        before = self.taken[position - 1] if position else (-1, -1)
        after = self.taken[position] if position < len(self.taken) else (interval[1] + 1, 0)
        return before[1] < interval[0] and interval[1] < after[0]


def plan_region(schedule: Schedule, *groups: Collection[int]) -> Region:
    """Return the region in which the blocks of an on-demand schedule can live, results excepted.

    Args:
        groups: the blocks that share pieces, those of each group with each other; none: all.
    """
    intervals = _intervals(schedule)
    return join_regions(
        *(
            _shared(schedule.graph, {b: intervals[b] for b in group if b in intervals})
            for group in groups or [intervals]
        )
    )


def _shared(graph: TaskGraph, intervals: Mapping[int, list[Interval]]) -> Region:
    """Return the region of blocks that share pieces, from when each is resident."""
    blocks = graph.blocks
    pieces: list[_Piece] = []
    chosen: dict[int, int] = {}
    for block in sorted(intervals, key=lambda b: (-blocks[b].size_bytes, intervals[b])):
        for number in reversed(range(len(pieces))):  # the smallest piece comes last
            if all(pieces[number].is_vacant(interval) for interval in intervals[block]):
                break
        else:
            number = len(pieces)
            pieces.append(_Piece(blocks[block].size_bytes))
        for interval in intervals[block]:
            insort(pieces[number].taken, interval)
        chosen[block] = number
    return Region(tuple(piece.size_bytes for piece in pieces), chosen)


def keep_apart(schedule: Schedule, region: Region) -> Region:
    """Return the region without the blocks that would meet another one in their piece, and without results.

    Args:
        schedule: an on-demand schedule of these blocks.
    """
    intervals = _intervals(schedule)
    pieces = [_Piece(size_bytes) for size_bytes in region.piece_bytes]
    chosen: dict[int, int] = {}
    for block, number in sorted(region.pieces.items()):
        if schedule.graph.blocks[block].role in RESULT_ROLES:
            continue  # the caller keeps its memory
        if all(pieces[number].is_vacant(interval) for interval in intervals.get(block, ())):
            for interval in intervals.get(block, ()):
                insort(pieces[number].taken, interval)
            chosen[block] = number
    return Region(region.piece_bytes, chosen)


def join_regions(*regions: Region) -> Region:
    """Return the region that has the pieces of all of these."""
    piece_bytes: list[int] = []
    pieces: dict[int, int] = {}
    for region in regions:
        pieces |= {block: len(piece_bytes) + piece for block, piece in region.pieces.items()}
        piece_bytes += region.piece_bytes
    return Region(tuple(piece_bytes), pieces)


def _intervals(schedule: Schedule) -> dict[int, list[Interval]]:
    """Return when each block is resident; a block that is not freed stays to the end."""
    blocks = schedule.graph.blocks
    began: dict[int, int] = {}
    intervals: dict[int, list[Interval]] = defaultdict(list)
    position = 0
    for position, (block, begins) in enumerate(residencies(schedule)):
        if blocks[block].is_external or blocks[block].role in RESULT_ROLES:
            continue
        if begins:
            began[block] = position
        else:
            intervals[block].append((began.pop(block), position))
    for block, start in began.items():
        intervals[block].append((start, position + 1))
    return intervals
