"""The page of a validation, rendered from its summaries."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from membench.core.files import write_whole
from membench.validation.dataset import DataSet
from membench.validation.errors import Comparison, Summary

PAGE = "README.md"
PUBLISHED = "published.yaml"
"""Errors that others published, in the folder of the data sets."""
_QUANTITIES = {"step_time_s": "step time", "reserved_bytes": "reserved memory", "used_bytes": "used memory"}
_LEAST_ROWS = 4
"""Of a family, to have a line."""


def write_page(
    compared: Sequence[tuple[DataSet, Sequence[Comparison]]],
    found: Sequence[Summary],
    published: Path,
    folder: Path,
) -> None:
    """Write ``<folder>/README.md``.

    Args:
        compared: each data set with its rows.
        found: the summaries of all data sets.
        published: the folder of the data sets.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=False,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        percent=_percent,
        quantity=_QUANTITIES.__getitem__,
        ours=lambda line, name: _percent(getattr(line.ours, name)) if line.ours else "",
        within=lambda line, position: _percent(line.ours.within[position]) if line.ours else "",
        bias=lambda line: f"{100 * line.ours.bias:+.1f} %" if line.ours else "",
    )
    text = environment.get_template("validation.md").render(
        glance=[line for line in found if line.part in ("judged", "fitted")],
        published=yaml.safe_load((published / PUBLISHED).read_text()),
        sets=[_set(data, rows, found) for data, rows in compared],
    )
    write_whole(folder / PAGE, text.rstrip() + "\n")


def _set(data: DataSet, comparisons: Sequence[Comparison], found: Sequence[Summary]) -> dict[str, Any]:
    lines = [line for line in found if line.dataset == data.name and ":" in line.part]
    tables = []
    for kind in ("device", "family"):
        of_kind = [line for line in lines if line.part.startswith(kind)]
        if kind == "family":
            of_kind = [line for line in of_kind if line.ours and line.ours.rows >= _LEAST_ROWS]
        if of_kind:
            has_roofline = any(line.roofline for line in of_kind)
            tables.append({"kind": kind, "lines": of_kind, "has_roofline": has_roofline})
    reasons: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for each in comparisons:
        if each.prediction.reason:
            reasons[each.prediction.reason][f"`{each.row.network}`"] = None
    not_run = [(reason, ", ".join(networks)) for reason, networks in reasons.items()]
    return {"data": data, "tables": tables, "not_run": not_run}


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
