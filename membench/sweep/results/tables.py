"""Records of any folder as a table, for pandas and for files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from membench.core.errors import MembenchError
from membench.core.extras import require
from membench.core.record import Record
from membench.sweep.results.listing import differences
from membench.sweep.results.tracked import record_row

if TYPE_CHECKING:
    import pandas as pd


def records(folder: str | Path = "outputs/records") -> "pd.DataFrame":
    """Return the records in a folder and those below it as a table: a row for each, units in the columns' names.

    The first columns are the cell's model, batch size, strategy and so on, then come its outcome and its numbers, and
    last the other options in which the records differ.

    Args:
        folder: the one of a sweep (``outputs/<date>/<time>``), of all records, or any that they were copied to.

    Raises:
        MembenchError: there is no such folder, or it has no record; or pandas is not installed.
    """
    require("dataframes", "a DataFrame")
    import pandas as pd

    return pd.DataFrame(rows(read_records(Path(folder))))


def rows(found: Sequence[Record]) -> list[dict[str, Any]]:
    """Return records as rows of one table."""
    others = differences([record.configuration for record in found])
    known = [record_row(record) for record in found]
    return [
        row | {name: value for name, value in own.items() if name not in row}
        for row, own in zip(known, others, strict=True)
    ]


def read_records(folder: Path) -> list[Record]:
    """Return the records in a folder and those below it, each once, in the order of their paths.

    Raises:
        MembenchError: see `records`.
    """
    if not folder.is_dir():
        raise MembenchError(f"{folder} is not a folder; name one with records, such as outputs/records")
    read = (_record(path) for path in sorted(folder.rglob("*.json"), key=lambda path: (len(str(path)), path)))
    found = {record.to_json(): record for record in read if record}
    if not found:
        raise MembenchError(f"there are no records in {folder}; `membench run` makes them, in outputs/records")
    return list(found.values())


def _record(path: Path) -> Record | None:
    """Return the record in a file, as a job or the store of records writes it; None: there is none."""
    try:
        values = json.loads(path.read_text())
        return Record.from_values(values.get("record", values))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
