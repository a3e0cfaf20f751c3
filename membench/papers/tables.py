"""Tables of results: a row per (item, model, batch size, device, system, metric), with the paper's value and ours.

Cells are text with a fixed count of digits, so that equal results are equal bytes.
"""

import csv
from collections.abc import Iterable, Mapping
from math import isnan
from pathlib import Path

import pandas as pd

from membench.core.checks import number
from membench.core.errors import MembenchError
from membench.core.files import write_whole
from membench.core.record import Outcome
from membench.papers.experiment import Row
from membench.papers.quantities import Result
from membench.papers.row_key import RowKey
from membench.papers.verdicts import deviation

VALUE_COLUMNS = ("paper_value", "simulated_value", "measured_value", "deviation")

_MEASURED_COLUMNS = ("item", "model", "batch_size", "system", "metric", "measured_value")


class MeasuredValues:
    """Values measured on real devices, from ``results/measured/<device>/*.csv``; the first device of a row counts.

    Raises:
        MembenchError: a file is not such a table.
    """

    def __init__(self, directory: Path) -> None:
        self._values: dict[RowKey, tuple[float, str]] = {}
        for path in sorted(directory.glob("*/*.csv")):
            for entry in read_csv(path, columns=_MEASURED_COLUMNS, numbers=("measured_value",)):
                if entry["measured_value"]:
                    value = float(entry["measured_value"]), path.parent.name
                    self._values.setdefault(RowKey.read(entry).on_any_device(), value)

    def find(self, row: Row) -> tuple[float | None, str]:
        """Return the value measured for a row on any device, and that device; None and "" without one."""
        return self._values.get(RowKey.of(row).on_any_device(), (None, ""))


def table(results: Iterable[Result], measured: MeasuredValues) -> pd.DataFrame:
    """Return the table of one experiment's results; every cell is text."""
    lines = []
    for result in results:
        reasons = result.reason, result.answer.direction_only
        lines.append(table_line(result, measured, {"outcome": _outcome(result)}, *reasons))
    return pd.DataFrame(lines)


def table_line(
    result: Result, measured: MeasuredValues | None, judged: Mapping[str, str], *reasons: str
) -> dict[str, str]:
    """Return a result's line of a table, as text by column.

    Args:
        measured: values of real devices; without them, the line is the same on every machine.
        judged: the column between values and reasons.
    """
    value, device = measured.find(result.row) if measured else (None, "")
    return {
        **RowKey.of(result.row)._asdict(),
        "our_batch_size": "" if result.our_batch_size is None else str(result.our_batch_size),
        **_value_columns(result, value),
        **judged,
        "reason": "; ".join(filter(None, (*reasons, f"measured on {device}" if device else ""))),
    }


def _value_columns(result: Result, measured_value: float | None) -> dict[str, str]:
    """Return the paper's value, ours, and ours' deviation as a fraction of the paper's.

    A trained value is a measured one. A row that is judged by its direction only has no deviation.
    """
    papers, ours = result.row.value, result.value
    comparable = not result.answer.direction_only
    off = deviation(ours, papers) if comparable and ours is not None and papers is not None else None
    numbers = (papers, None, ours) if result.answer.trained else (papers, ours, measured_value)
    return {
        **{name: format_number(number) for name, number in zip(VALUE_COLUMNS[:3], numbers, strict=True)},
        "deviation": "" if off is None else f"{off:.3f}",
    }


def read_csv(path: Path, *, columns: Iterable[str] = (), numbers: Iterable[str] = ()) -> list[dict[str, str]]:
    """Read a table that `write_csv` wrote: its rows as text by column.

    Args:
        columns: required in every row.
        numbers: those of `columns` whose cells are numbers or empty.

    Raises:
        MembenchError: the file is not such a table; names the row.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise MembenchError(f"{path} is not a CSV file") from error
    for count, row in enumerate(rows, start=1):
        for name in columns:
            if row.get(name) is None:
                raise MembenchError(f"row {count} of {path} has no column {name}")
        for name in numbers:
            if row[name] and isnan(number(row[name])):
                raise MembenchError(f"row {count} of {path}: {name} is {row[name]!r}, which is not a number")
    return rows


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, frame.to_csv(index=False, lineterminator="\n"))


def _outcome(result: Result) -> str:
    if result.answer.input:
        return "input"
    if result.answer.not_run:
        return "not_run"
    return str(result.outcome or Outcome.FAILED)


def format_number(value: float | None) -> str:
    """Return a number with six significant digits, as an integer from 1e6 on; empty for None."""
    return "" if value is None else f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
