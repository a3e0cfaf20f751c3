"""Tables of text: CSV files with a fixed count of digits, so that equal results are equal bytes."""

import csv
from collections.abc import Iterable
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

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


def write_csv(frame: "pd.DataFrame", path: Path) -> None:
    """Write a table, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, frame.to_csv(index=False, lineterminator="\n"))


def format_number(value: float | None) -> str:
    """Return a number with six significant digits, as an integer from 1e6 on; empty for None."""
    return "" if value is None else f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
