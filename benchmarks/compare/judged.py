"""The rows of a network judged: what is not dominated, and the best strategy at a peer's peak."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from benchmarks.compare.row import EAGER, MEMBENCH, OK, PEER, Row
from membench.pictures.frontier import Frontier, FrontierPoint

_OURS = "the strategies of membench"


@dataclass(frozen=True)
class Duel:
    """A peer and the fastest strategy that holds no more memory.

    Attributes:
        best: None: no strategy holds as little.
    """

    peer: Row
    best: Row | None

    @property
    def ratio(self) -> float | None:
        """The peer's time in the strategy's: above 1 the strategy is faster."""
        if self.best is None or not self.best.step_time_s or not self.peer.step_time_s:
            return None
        return self.peer.step_time_s / self.best.step_time_s

    @property
    def is_won(self) -> bool:
        return self.ratio is not None and self.ratio > 1


def counts(row: Row) -> bool:
    """Whether a row has a time and eager's results."""
    return row.has_eagers_results and row.step_time_s is not None


def duels(rows: Sequence[Row]) -> list[Duel]:
    """Return a duel for each peer of one network and mode that was run and has eager's gradients.

    The strategy is the one that was the fastest in the first rounds, which are not among those that the times are of.
    """
    ours = [row for row in rows if row.tool == MEMBENCH and counts(row)]
    return [
        Duel(peer, min(_within(peer, ours), key=first_time_over_eager, default=None))
        for peer in rows
        if peer.tool == PEER and counts(peer)
    ]


def step_time_s(row: Row) -> float:
    """Return the time that a row is judged by."""
    assert row.step_time_s is not None
    return row.step_time_s


def first_time_over_eager(row: Row) -> float:
    """Return the time by which a strategy is chosen."""
    assert row.first_time_over_eager is not None
    return row.first_time_over_eager


def not_dominated(rows: Sequence[Row], time_s: Callable[[Row], float], margin: float = 0.0) -> list[Row]:
    """Return the rows with eager's results that no other such row beats in memory and time, by falling peak.

    Args:
        margin: by how much, as a share of its own time, the other one must be faster.
    """
    found: list[Row] = []
    least_s = inf
    eligible = (row for row in rows if row.has_eagers_results)
    for row in sorted(eligible, key=lambda row: (row.peak_bytes, time_s(row))):
        if time_s(row) * (1 - margin) < least_s:
            found.append(row)
        least_s = min(least_s, time_s(row))
    return found[::-1]


def frontier(rows: Sequence[Row], title: str) -> Frontier:
    """Return one network's picture: points of eager and peers, and the line of strategies that none dominates."""
    eager = _point(next(row for row in rows if row.method == EAGER), EAGER)
    ours = not_dominated([row for row in rows if row.tool == MEMBENCH and counts(row)], step_time_s)
    peers = [row for row in rows if row.tool == PEER and row.outcome == OK and row.step_time_s]
    points = (
        eager,
        *(_point(row, _OURS) for row in ours),
        *(_point(row, row.method if counts(row) else f"{row.method} (wrong gradients)") for row in peers),
    )
    return Frontier(title, eager, points, 2 * max(point.peak_bytes for point in points), _OURS)


def _within(peer: Row, ours: Sequence[Row]) -> Iterator[Row]:
    assert peer.peak_bytes is not None
    return (row for row in ours if row.peak_bytes is not None and row.peak_bytes <= peer.peak_bytes)


def _point(row: Row, name: str) -> FrontierPoint:
    assert row.peak_bytes is not None
    return FrontierPoint(
        strategy=name,
        budget_bytes=row.budget_bytes,
        peak_bytes=row.peak_bytes,
        step_time_s=step_time_s(row),
        fits=True,
        lower_bound_s=None,
        gap=None,
        planning_time_s=row.ready_time_s or 0.0,
    )
