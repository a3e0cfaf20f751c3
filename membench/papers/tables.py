"""Tidy tables: one row per (item, model, batch size, device, system, metric), the paper's number beside ours.

Cells are text with a fixed number of digits, so that the same results are the same bytes.
"""

import csv
from collections.abc import Iterable
from math import isnan
from pathlib import Path

import pandas as pd

from membench.core.checks import number
from membench.core.errors import MembenchError
from membench.core.record import Outcome
from membench.papers.experiment import Row
from membench.papers.quantities import Result
from membench.papers.verdicts import deviation

KEY_COLUMNS = ("item", "model", "dataset", "batch_size", "device", "system", "metric", "unit")
VALUE_COLUMNS = ("paper_value", "simulated_value", "measured_value", "deviation")

_MEASURED_COLUMNS = ("item", "model", "batch_size", "system", "metric", "measured_value")
_MeasuredKey = tuple[str, str, str, str, str]


class Measured:
    """Numbers of real devices, from ``results/measured/<device>/*.csv``; none where nothing was measured.

    A row is found by item, model, batch size, system and metric: the device is the one that was at hand.

    Raises:
        MembenchError: a file is no such table.
    """

    def __init__(self, directory: Path) -> None:
        self._values: dict[_MeasuredKey, tuple[float, str]] = {}
        for path in sorted(directory.glob("*/*.csv")):
            for entry in read_csv(path, columns=_MEASURED_COLUMNS, numbers=("measured_value",)):
                if not entry["measured_value"]:
                    continue
                key = (entry["item"], entry["model"], entry["batch_size"], entry["system"], entry["metric"])
                self._values.setdefault(key, (float(entry["measured_value"]), path.parent.name))

    def find(self, row: Row) -> tuple[float | None, str]:
        """Return a row's measured value and its device, or None and nothing."""
        key = (row.item, row.model, _count(row.batch_size), row.system, row.metric)
        return self._values.get(key, (None, ""))


def table(results: Iterable[Result], measured: Measured) -> pd.DataFrame:
    """Return the table of one item's results; every cell is text."""
    return pd.DataFrame([table_row(result, measured) for result in results])


def table_row(result: Result, measured: Measured) -> dict[str, str]:
    row = result.row
    measured_value, device = measured.find(row)
    reasons = (result.reason, result.answer.direction_only, f"measured on {device}" if device else "")
    return {
        **key_columns(row),
        **value_columns(result, measured_value),
        "outcome": _outcome(result),
        "reason": "; ".join(filter(None, reasons)),
    }


def key_columns(row: Row) -> dict[str, str]:
    columns = {name: getattr(row, name) for name in KEY_COLUMNS}
    return columns | {"batch_size": _count(row.batch_size)}


def value_columns(result: Result, measured_value: float | None) -> dict[str, str]:
    """Return the paper's value and ours; `deviation` is our own value's, as a fraction of the paper's.

    What was trained was measured. What answers in kind deviates from the paper in more than its value.
    """
    papers, ours = result.row.value, result.value
    direction_only = result.answer.direction_only
    off = deviation(ours, papers) if ours is not None and papers is not None and not direction_only else None
    numbers = (papers, None, ours) if result.answer.trained else (papers, ours, measured_value)
    return {
        **{name: format_number(number) for name, number in zip(VALUE_COLUMNS[:3], numbers, strict=True)},
        "deviation": "" if off is None else f"{off:.3f}",
    }


def read_csv(path: Path, *, columns: Iterable[str] = (), numbers: Iterable[str] = ()) -> list[dict[str, str]]:
    """Read what `write_csv` wrote: the rows as text by column.

    Args:
        columns: those that every row must have.
        numbers: those of them in which a cell is empty or a number.

    Raises:
        MembenchError: it is no such table; names the row.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise MembenchError(f"{path} is no table of text") from error
    for count, row in enumerate(rows, start=1):
        for name in columns:
            if row.get(name) is None:
                raise MembenchError(f"row {count} of {path} has no column {name}")
        for name in numbers:
            if row[name] and isnan(number(row[name])):
                raise MembenchError(f"row {count} of {path}: {name} is {row[name]!r}, which is no number")
    return rows


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False, lineterminator="\n")


def _outcome(result: Result) -> str:
    if result.answer.input:
        return "input"
    if result.answer.not_run:
        return "not_run"
    return str(result.outcome or Outcome.FAILED)


def _count(number: int | None) -> str:
    return "" if number is None else str(number)


def format_number(value: float | None) -> str:
    """Return a number with a fixed count of digits, or nothing for None."""
    return "" if value is None else f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
