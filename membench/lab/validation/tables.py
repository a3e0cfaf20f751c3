"""Tables of a validation: a line for each row and quantity, and a summary of each data set."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from membench.advice.known_errors import WITHIN, Distribution
from membench.core.tables import format_number, write_csv
from membench.lab.validation.dataset import DataSet
from membench.lab.validation.errors import ROOFLINE, Comparison, Summary

SUMMARY = "summary"


def write_rows(dataset: DataSet, comparisons: Sequence[Comparison], folder: Path) -> None:
    """Write ``<folder>/<data set>.csv``. Every cell is text; what was not obtained is empty, with a reason."""
    lines = [line for each in comparisons for line in _lines(dataset, each)]
    write_csv(pd.DataFrame(lines), folder / f"{dataset.name}.csv")


def _lines(dataset: DataSet, comparison: Comparison) -> Iterator[dict[str, str]]:
    row, prediction = comparison.row, comparison.prediction
    quantities = row.measured or dataset.quantities
    for quantity in quantities:
        measured = row.measured.get(quantity)
        line = {
            "row": str(row.number),
            "network": row.network,
            "family": comparison.family,
            "device": row.device,
            "batch_size": str(row.batch_size),
            "quantity": quantity,
            "measured_value": format_number(measured),
            "simulated_value": format_number(prediction.values.get(quantity)),
            "relative_error": _error(comparison.error(quantity)),
        }
        if quantity == "step_time_s":
            line["roofline_value"] = format_number(prediction.values.get(ROOFLINE))
            line["roofline_relative_error"] = _error(comparison.error(quantity, ROOFLINE))
        if any(each.base is not None for each in dataset.rows):
            line["measured_change"] = format_number(comparison.measured_change(quantity))
            line["simulated_change"] = format_number(comparison.simulated_change(quantity))
        if dataset.has_limit:
            if not dataset.has_ladder:
                line["measured_fits"] = _switch(row.fits)
            line["simulated_fits"] = _switch(prediction.fits)
        if dataset.has_ladder:
            line["next_batch_size"] = "" if row.next_batch_size is None else str(row.next_batch_size)
            line["simulated_next_fits"] = _switch(prediction.next_fits)
        yield line | {"fitted": _switch(quantity in comparison.fitted), "reason": prediction.reason}


def write_summary(found: Sequence[Summary], folder: Path, known: Sequence[str]) -> None:
    """Write ``<folder>/summary.csv``; lines of data sets that are not among the summaries stay as they are.

    Args:
        known: the names of all data sets, in order.
    """
    path = folder / f"{SUMMARY}.csv"
    lines = [_summary_line(each) for each in found]
    if path.exists():
        made = {line["dataset"] for line in lines}
        with path.open() as file:
            lines += [line for line in csv.DictReader(file) if line["dataset"] in {*known} - made]
    lines.sort(key=lambda line: known.index(line["dataset"]))
    write_csv(pd.DataFrame(lines), path)


def _summary_line(summary: Summary) -> dict[str, str]:
    return {
        "dataset": summary.dataset,
        "part": summary.part,
        "quantity": summary.quantity,
        **_distribution(summary.ours),
        "roofline_median": _error(summary.roofline.median if summary.roofline else None),
        "fits_right": _error(summary.fits_right),
        "not_run": str(summary.not_run),
    }


def _distribution(found: Distribution | None) -> dict[str, str]:
    names = ["rows", "median", "p90", "bias", *(f"within_{limit:.0%}".rstrip("%") for limit in WITHIN)]
    if found is None:
        return dict.fromkeys(names, "") | {"rows": "0"}
    values = [_error(value) for value in (found.median, found.p90, found.bias, *found.within)]
    return dict(zip(names, [str(found.rows), *values], strict=True))


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _switch(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"
