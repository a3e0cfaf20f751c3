"""Tables as CSV, without pandas and with pandas' bytes."""

from pathlib import Path

import pandas as pd
import pytest

from membench.core.tables import as_csv, read_csv, write_rows

ROWS = [{"a": 0.1, "b": "x, y"}, {"a": float("nan"), "c": 1e-20}, {"b": None, "c": 2.0, "d": True}]


def test_rows_have_the_bytes_that_pandas_writes() -> None:
    for rows in (ROWS, ROWS[:1], []):
        assert as_csv(rows) == pd.DataFrame(rows).to_csv(index=False, lineterminator="\n").rstrip("\n")


def test_a_column_of_integers_stays_one_where_a_row_has_none() -> None:
    assert as_csv([{"a": 1}, {"b": 2**60}]) == f"a,b\n1,\n,{2**60}"


@pytest.mark.parametrize("rows", [ROWS])
def test_what_is_written_is_read(rows: list[dict[str, object]], tmp_path: Path) -> None:
    path = tmp_path / "folder" / "table.csv"
    write_rows(rows, path)
    assert [row["b"] for row in read_csv(path, columns="abcd")] == ["x, y", "", ""]
