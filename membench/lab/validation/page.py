"""The page of a validation, rendered from its summaries."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from membench.core.files import write_whole
from membench.lab.validation.dataset import DataSet
from membench.lab.validation.errors import Comparison, Summary, order_of
from membench.lab.validation.rows import LARGEST, QUANTITIES

PAGE = "README.md"
_QUANTITIES = {
    "step_time_s": "step time",
    "allocated_bytes": "allocated memory",
    "reserved_bytes": "reserved memory",
    "used_bytes": "used memory",
    LARGEST: "largest model",
}
_LEAST_ROWS = 4
"""Of a family, to have a line."""


def write_page(
    compared: Sequence[tuple[DataSet, Sequence[Comparison]]], found: Sequence[Summary], folder: Path
) -> None:
    """Write ``<folder>/README.md``.

    Args:
        compared: each data set with its rows.
        found: the summaries of all data sets.
    """
    render(
        "validation.md",
        folder,
        glance=[line for line in found if line.part in ("judged", "fitted", "changes")],
        suffixes={"judged": "", "fitted": ", rows fitted on", "changes": ", changes"},
        coverage=coverage(compared),
        sets=[_set(data, rows, found) for data, rows in compared],
    )


def render(template: str, folder: Path, **values: Any) -> None:
    """Write ``<folder>/README.md`` from one of the templates."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=False,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        percent=_percent,
        quantity=_QUANTITIES.__getitem__,
        median=lambda found: with_interval(found.median, found.median_interval) if found else "",
        with_interval=with_interval,
        p90=lambda line: _percent(line.ours.p90) if line.ours else "",
        within=lambda line, position: _percent(line.ours.within[position]) if line.ours else "",
        bias=lambda line: f"{100 * line.ours.bias:+.1f} %" if line.ours else "",
    )
    text = environment.get_template(template).render(**values)
    # a part that a data set lacks leaves its empty lines
    write_whole(folder / PAGE, re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n")


def _set(data: DataSet, comparisons: Sequence[Comparison], found: Sequence[Summary]) -> dict[str, Any]:
    lines = [line for line in found if line.dataset == data.name and ":" in line.part]
    names = data.quantities
    tables = []
    for kind, quantity in product(("device", "family"), names):
        of_kind = [line for line in lines if line.part.startswith(kind) and line.quantity == quantity]
        if kind == "family":
            of_kind = [line for line in of_kind if line.ours and line.ours.rows >= _LEAST_ROWS]
        if of_kind:
            title = kind.capitalize() + (f", {_QUANTITIES[quantity]}" if len(names) > 1 else "")
            has_roofline = any(line.roofline for line in of_kind)
            tables.append({"title": title, "lines": of_kind, "has_roofline": has_roofline})
    reasons: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for each in comparisons:
        if each.prediction.reason:
            reasons[each.prediction.reason][f"`{each.row.network}`"] = None
    not_run = [(reason, ", ".join(networks)) for reason, networks in reasons.items()]
    changes = [line for line in found if line.dataset == data.name and line.part == "changes"]
    return {
        "data": data,
        "pictures": [
            data.name if len(names) == 1 else f"{data.name}_{quantity}"
            for quantity in names
            if any(quantity in each.prediction.values and quantity in each.row.measured for each in comparisons)
        ],
        "tables": tables,
        "changes": changes,
        "order": order_of(comparisons),
        "not_run": not_run,
    }


@dataclass(frozen=True)
class Coverage:
    """Judged rows that lie inside of their intervals.

    Attributes:
        title: the quantity in words.
        rows: with an interval.
        inside: fraction of rows.
        of_datasets: mean of the data sets' fractions.
    """

    title: str
    rows: int
    inside: float
    of_datasets: float


def coverage(compared: Sequence[tuple[DataSet, Sequence[Comparison]]]) -> list[Coverage]:
    """Return the coverage of times and of memory, of those that have intervals."""
    found = []
    for title, names in {"step time": QUANTITIES[:1], "memory": QUANTITIES[1:4]}.items():
        known = [
            [inside for name in names for each in rows if (inside := each.is_inside(name)) is not None]
            for _, rows in compared
        ]
        fractions = [mean(rows) for rows in known if rows]
        if fractions:
            number = sum(map(len, known))
            found.append(Coverage(title, number, sum(map(sum, known)) / number, mean(fractions)))
    return found


def with_interval(value: float, interval: tuple[float, float] | None) -> str:
    """Return a fraction in percent, with the bounds of its interval."""
    return _percent(value) + (f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else "")


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
