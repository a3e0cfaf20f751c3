"""Tables of a validation: a line for each row and quantity, and a summary of all data sets."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from membench.core.checks import number
from membench.core.errors import MembenchError
from membench.core.tables import format_number, read_csv, write_csv
from membench.lab.validation.dataset import DataSet
from membench.lab.validation.distribution import WITHIN, Distribution
from membench.lab.validation.errors import ROOFLINE, Comparison, Summary
from membench.lab.validation.predictions import RowPrediction

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
        low, high = comparison.intervals.get(quantity, (None, None))
        line |= {"interval_low": format_number(low), "interval_high": format_number(high)}
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


def as_written(prediction: RowPrediction) -> RowPrediction:
    """Return a prediction with the digits that tables have, so that results are the same if read from them."""
    return replace(prediction, values={name: float(format_number(each)) for name, each in prediction.values.items()})


def read_predictions(dataset: DataSet, folder: Path) -> list[RowPrediction]:
    """Return the predictions of a data set that `write_rows` wrote, in the order of its rows.

    Raises:
        MembenchError: there is no such table, or not of these rows.
    """
    path = folder / f"{dataset.name}.csv"
    again = f"run membench validate dataset={dataset.name} first"
    if not path.exists():
        raise MembenchError(f"there is no {path}; {again}")
    found: dict[str, RowPrediction] = {}
    for line in read_csv(path, columns=("row", "quantity", "simulated_value", "reason"), numbers=("simulated_value",)):
        earlier = found.get(line["row"], RowPrediction())
        cells = {line["quantity"]: line["simulated_value"], ROOFLINE: line.get("roofline_value")}
        found[line["row"]] = RowPrediction(
            {**earlier.values, **{name: number(cell) for name, cell in cells.items() if cell}},
            fits=_read_switch(line.get("simulated_fits")),
            next_fits=_read_switch(line.get("simulated_next_fits")),
            reason=line["reason"],
        )
    if list(found) != [str(row.number) for row in dataset.rows]:
        raise MembenchError(f"{path} has other rows than the data set; {again}")
    return list(found.values())


def _read_switch(cell: str | None) -> bool | None:
    return cell == "yes" if cell else None


def write_summary(found: Sequence[Summary], folder: Path) -> None:
    """Write ``<folder>/summary.csv``."""
    write_csv(pd.DataFrame([_summary_line(each) for each in found]), folder / f"{SUMMARY}.csv")


def _summary_line(summary: Summary) -> dict[str, str]:
    return {
        "dataset": summary.dataset,
        "part": summary.part,
        "quantity": summary.quantity,
        **_distribution(summary.ours),
        **_median("roofline_median", summary.roofline),
        "inside_interval": _error(summary.inside),
        "fits_right": _error(summary.fits_right),
        "not_run": str(summary.not_run),
    }


def _distribution(found: Distribution | None) -> dict[str, str]:
    names = ["p90", "bias", *(f"within_{limit:.0%}".rstrip("%") for limit in WITHIN)]
    values = (found.p90, found.bias, *found.within) if found else [None] * len(names)
    return {
        "rows": str(found.rows if found else 0),
        **_median("median", found),
        **dict(zip(names, map(_error, values), strict=True)),
    }


def _median(name: str, found: Distribution | None) -> dict[str, str]:
    low, high = (found and found.median_interval) or (None, None)
    return {name: _error(found.median if found else None), f"{name}_low": _error(low), f"{name}_high": _error(high)}


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _switch(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"
