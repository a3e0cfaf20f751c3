"""Tables of a validation: a line for each row and quantity, and a summary of each data set."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from membench.papers.tables import format_number, write_csv
from membench.validation.dataset import DataSet
from membench.validation.errors import ROOFLINE, WITHIN, Comparison, Distribution, Summary

SUMMARY = "summary"


def write_rows(dataset: DataSet, comparisons: Sequence[Comparison], folder: Path) -> None:
    """Write ``<folder>/<data set>.csv``. Every cell is text; what was not obtained is empty, with a reason."""
    lines = [line for each in comparisons for line in _lines(dataset, each)]
    write_csv(pd.DataFrame(lines), folder / f"{dataset.name}.csv")


def _lines(dataset: DataSet, comparison: Comparison) -> Iterator[dict[str, str]]:
    row, prediction = comparison.row, comparison.prediction
    for quantity, measured in row.measured.items():
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
        if dataset.has_ladder:
            line["simulated_fits"] = _switch(prediction.fits)
            line["next_batch_size"] = "" if row.next_batch_size is None else str(row.next_batch_size)
            line["simulated_next_fits"] = _switch(prediction.next_fits)
        yield line | {"fitted": _switch(comparison.is_fitted), "reason": prediction.reason}


def write_summary(found: Sequence[Summary], folder: Path) -> None:
    """Write ``<folder>/summary.csv``."""
    write_csv(pd.DataFrame([_summary_line(each) for each in found]), folder / f"{SUMMARY}.csv")


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
