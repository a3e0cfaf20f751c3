"""A frontier as text, and as values for JSON and tables."""

from collections.abc import Iterator
from typing import Any

from membench.core.document import Element, Table
from membench.core.tables import format_number
from membench.core.units import format_bytes, format_seconds
from membench.pictures.frontier import Frontier


def elements(frontier: Frontier) -> Iterator[Element]:
    """Yield the points that no other one beats in both memory and time."""
    yield frontier.title
    rows, fastest_s = [("peak", "step time", "over eager", "strategy", "above optimal")], float("inf")
    for point in sorted(frontier.points, key=lambda point: (point.peak_bytes, point.step_time_s)):
        if point.step_time_s < fastest_s:
            fastest_s = point.step_time_s
            over = f"{point.step_time_s / frontier.eager.step_time_s - 1:+.1%}"
            bound = "" if point.gap is None else f"at most {point.gap:.1%}"
            rows.append(
                (format_bytes(point.peak_bytes), format_seconds(point.step_time_s), over, point.strategy, bound)
            )
    yield Table(tuple(rows))


def values(frontier: Frontier) -> dict[str, Any]:
    """Return the frontier as values that JSON has."""
    return {"title": frontier.title, "capacity_bytes": frontier.capacity_bytes, "points": list(rows(frontier))}


def rows(frontier: Frontier) -> Iterator[dict[str, str]]:
    """Yield a row for each point, with as many digits as are written; a cell is empty where there is no such number."""
    for point in frontier.points:
        yield {
            "strategy": point.strategy,
            "budget_bytes": "" if point.budget_bytes is None else str(point.budget_bytes),
            "peak_bytes": str(point.peak_bytes),
            "step_time_s": format_number(point.step_time_s),
            "fits": "yes" if point.fits else "no",
            "lower_bound_s": format_number(point.lower_bound_s),
            "gap": "" if point.gap is None else f"{point.gap:.4f}",
            "planning_time_s": f"{point.planning_time_s:.1f}",
        }
