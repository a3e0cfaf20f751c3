"""The fixed region of memory that blocks share in turn (Layrub 3.3, "constant resource region").

Pieces are planned once, from a schedule that allocates on demand: a block that comes back takes its former piece if
that is vacant, any other the smallest vacant piece that holds it, or the largest vacant one, which grows. The region
then stays as it is for the whole run.
"""

from dataclasses import dataclass

from membench.planning.liveness import residencies
from membench.schedule import Schedule
from membench.task_graph import EXTERNAL_ROLES, RESULT_ROLES


@dataclass(frozen=True)
class Region:
    """Pieces of device memory, and which piece a block lies in at each of its residencies."""

    piece_bytes: tuple[int, ...]
    pieces: dict[tuple[int, int], int]

    def piece_of(self, block: int, residency: int) -> int | None:
        """Return the piece of a block's n-th residency (counted from 0); None outside of the region."""
        return self.pieces.get((block, residency))

    @property
    def total_bytes(self) -> int:
        return sum(self.piece_bytes)


def plan_region(schedule: Schedule) -> Region:
    """Return the region in which the blocks of an on-demand schedule can live, results excepted."""
    blocks = schedule.graph.blocks
    piece_bytes: list[int] = []
    vacant: set[int] = set()
    pieces: dict[tuple[int, int], int] = {}
    for block, residency, opens in residencies(schedule):
        if blocks[block].role in EXTERNAL_ROLES | RESULT_ROLES:
            continue
        if not opens:
            vacant.add(pieces[block, residency])
            continue
        size_bytes = blocks[block].size_bytes
        former = pieces.get((block, residency - 1))
        fitting = [piece for piece in vacant if piece_bytes[piece] >= size_bytes]
        if former in vacant:  # nobody has entered since, or whoever did is gone
            piece = former
        elif fitting:
            piece = min(fitting, key=lambda p: (piece_bytes[p], p))
        elif vacant:
            piece = max(vacant, key=lambda p: (piece_bytes[p], -p))
            piece_bytes[piece] = size_bytes
        else:
            piece = len(piece_bytes)
            piece_bytes.append(size_bytes)
        vacant.discard(piece)
        pieces[block, residency] = piece
    return Region(tuple(piece_bytes), pieces)
