"""The page of a validation, rendered from its summaries."""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from membench.advice.known_errors import LARGEST
from membench.core.files import write_whole
from membench.lab.validation.dataset import DataSet
from membench.lab.validation.errors import Comparison, Summary, order_of

PAGE = "README.md"
PUBLISHED = "published.yaml"
"""Errors that others published, in the folder of the data sets."""
_QUANTITIES = {
    "step_time_s": "step time",
    "allocated_bytes": "allocated memory",
    "reserved_bytes": "reserved memory",
    "used_bytes": "used memory",
    LARGEST: "largest model",
}
_LEAST_ROWS = 4
"""Of a family, to have a line."""
_EVERY_ROW = re.compile(r"\[Every row\]\((\w+)\.csv\)")
"""In the section of a data set, with its name."""


def write_page(
    compared: Sequence[tuple[DataSet, Sequence[Comparison]]],
    found: Sequence[Summary],
    published: Path,
    folder: Path,
    known: Sequence[str],
) -> None:
    """Write ``<folder>/README.md``; what it has of other data sets stays as it is.

    Args:
        compared: each data set with its rows.
        found: the summaries of all data sets.
        published: the folder of the data sets.
        known: the names of all data sets, in order.
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
        glance=[line for line in found if line.part in ("judged", "fitted", "changes")],
        published=yaml.safe_load((published / PUBLISHED).read_text()),
        suffixes={"judged": "", "fitted": ", rows fitted on", "changes": ", changes"},
        sets=[_set(data, rows, found) for data, rows in compared],
    )
    page = folder / PAGE
    whole = _with_others(text, page.read_text() if page.exists() else "", known)
    write_whole(page, re.sub(r"\n{3,}", "\n\n", whole))  # a part that a data set lacks leaves its empty lines


def _with_others(text: str, earlier: str, known: Sequence[str]) -> str:
    """Return a page with what an earlier one has of data sets that it lacks, in the order of all of them."""
    intro, glance, sections = _parts(text)
    _, other_glance, other_sections = _parts(earlier)
    lines = glance + [(name, line) for name, line in other_glance if name in known and name not in sections]
    lines.sort(key=lambda each: known.index(each[0]))
    head = intro.replace("\n".join(line for _, line in glance), "\n".join(line for _, line in lines))
    named = {**other_sections, **sections}
    return "\n\n".join([head.strip(), *(named[name] for name in known if name in named)]) + "\n"


def _parts(page: str) -> tuple[str, list[tuple[str, str]], dict[str, str]]:
    """Return what precedes the data sets' sections, the lines in it, and the sections with their data sets' names."""
    intro, *parts = re.split(r"(?m)^(?=## )", page)
    sections: dict[str, str] = {}
    for part in parts:
        if match := _EVERY_ROW.search(part):
            sections[match[1]] = part.strip()
        else:
            intro += part
    lines = [(line[2:].split(" ")[0].rstrip(","), line) for line in intro.splitlines() if line[:2] == "| "]
    return intro, [each for each in lines if each[0] in sections], sections


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


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
