"""Neighbours in an order by time whose intervals overlap."""

from collections.abc import Iterable, Iterator

from membench.steps.predicted.intervals import INSIDE, Interval


def overlaps(times: Iterable[tuple[str, Interval]]) -> Iterator[str]:
    """Yield a line with the first and the last of each row of neighbours that overlap; none where none do.

    Args:
        times: a name and the bounds of a time of each, the fastest first.
    """
    rows: list[list[tuple[str, Interval]]] = []
    for name, interval in times:
        if rows and interval[0] <= rows[-1][-1][1][1]:
            rows[-1].append((name, interval))
        else:
            rows.append([(name, interval)])
    if found := [f"{row[0][0]} to {row[-1][0]}" for row in rows if len(row) > 1]:
        yield f"{INSIDE:.0%} intervals of neighbours' times overlap, so their order may be another: {', '.join(found)}"
