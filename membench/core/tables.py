"""Tables of text: CSV files with a fixed count of digits, so that equal results are equal bytes."""

import csv
from collections.abc import Iterable, Mapping
from io import StringIO
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from membench.core.checks import number
from membench.core.errors import MembenchError
from membench.core.files import write_whole

if TYPE_CHECKING:
    import pandas as pd


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


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows with values by column as CSV, without a line break at its end.

    Columns are those of all rows, in the order in which they first occur. A cell is empty where a row has no such
    column, or where its value is None or not a number.
    """
    rows = list(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    text = StringIO()
    table = csv.DictWriter(text, list(columns), lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({name: "" if _is_nan(value) else value for name, value in row.items()})
    return text.getvalue().rstrip("\n")


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and isnan(value)


def write_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write rows with values by column as a table, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, as_csv(rows) + "\n")


def write_csv(frame: "pd.DataFrame", path: Path) -> None:
    """Write a table of pandas, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, frame.to_csv(index=False, lineterminator="\n"))


def format_number(value: float | None) -> str:
    """Return a number with six significant digits, as an integer from 1e6 on; empty for None."""
    return "" if value is None else f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
