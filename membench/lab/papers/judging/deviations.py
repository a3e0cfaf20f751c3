"""How far off: median and 90th percentile of the deviations from a paper's numbers, by quantity.

Counted are predicted numbers of ours that stand next to a number of the paper; one-sided statements have no deviation,
and a number that is stated several times counts once. Percentages deviate by percentage points, everything else by a
fraction of the paper's number.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from membench.lab.papers.judging.numbers import Number, PaperNumbers
from membench.lab.papers.judging.verdicts import AGREES, DEVIATES, deviation
from membench.lab.papers.reading.row_key import KEY_COLUMNS

QUANTITIES = {
    "memory": ("B", "KB", "MB", "GB"),
    "time": ("ms", "s", "min", "h"),
    "batch size": ("images",),
    "ratio": ("x",),
    "percentage": ("%",),
}
"""Quantities by their units. What has another unit is a count; a percentage above 100 is a ratio."""
NAMES = (*QUANTITIES, "count")
COLUMNS = ("quantity", *KEY_COLUMNS, "paper_value", "simulated_value", "deviation", "choice")


def deviations(numbers: PaperNumbers) -> list[dict[str, str]]:
    """Return a line for each predicted number: percentages in points, others as fractions, without signs.

    Of numbers with equal values, which the paper states in several places, the first stands for all.
    """
    limits = {row.line for each in numbers.paper.experiments for row, answer in each.rows if answer.limit}
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for number in numbers.stated:
        entry = number.entry
        is_compared = entry["deviation"] and entry["simulated_value"] and number.verdict in AGREES + DEVIATES
        if not is_compared or number.row.line in limits or not number.standing.is_predicted:
            continue
        line = _line(number)
        key = tuple(line[name] for name in ("quantity", "unit", "paper_value", "simulated_value"))
        choices = (*lines.get(key, {"choice": ""})["choice"].split("; "), *number.standing.choices)
        lines.setdefault(key, line)["choice"] = "; ".join(dict.fromkeys(filter(None, choices)))
    return list(lines.values())


def _line(number: Number) -> dict[str, str]:
    entry = number.entry
    ours, papers, unit = float(entry["simulated_value"]), float(entry["paper_value"]), entry["unit"]
    quantity = next((name for name, units in QUANTITIES.items() if unit in units), NAMES[-1])
    if quantity == "percentage" and papers > 100:
        quantity = "ratio"
    off = ours - papers if quantity == "percentage" else deviation(ours, papers)
    assert off is not None
    values = {"quantity": quantity, "deviation": f"{abs(off):.4g}", "choice": ""}
    return {name: values[name] if name in values else entry[name] for name in COLUMNS}


def spread(lines: Iterable[Mapping[str, str]], quantity: str) -> tuple[int, str, str]:
    """Return the count of a quantity's lines in `deviations`, median and 90th percentile in words, ``"4.2 %"``."""
    sizes = [float(line["deviation"]) for line in lines if line["quantity"] == quantity]
    if not sizes:
        return 0, "", ""
    median, ninetieth = (_format(quantity, float(size)) for size in np.percentile(sizes, (50, 90)))
    return len(sizes), median, ninetieth


def _format(quantity: str, size: float) -> str:
    scaled, unit = (size, "points") if quantity == "percentage" else (100 * size, "%")
    return f"{scaled:.{1 if scaled < 99.95 else 0}f} {unit}"


def without_choices(lines: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return the lines that rest on no choice that was made knowing them."""
    return [line for line in lines if not line["choice"]]
