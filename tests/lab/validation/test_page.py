"""The page and the tables of a validation: medians have intervals, and a table's predictions can be read again."""

from dataclasses import replace
from pathlib import Path

import pytest

from membench.core.errors import MembenchError
from membench.lab.validation.dataset import DataSet
from membench.lab.validation.errors import ROOFLINE, Comparison, comparisons, summaries
from membench.lab.validation.page import coverage, write_page
from membench.lab.validation.predictions import RowPrediction
from membench.lab.validation.rows import Row
from membench.lab.validation.tables import as_written, read_predictions, write_rows, write_summary

MEASURED = {"step_time_s": 1.0, "used_bytes": 2e9}
ROWS = tuple(Row(number, "resnet18", "t4", MEASURED, 16, {"batch_size": 8}) for number in range(4))
DATA = DataSet("first", "Title of first", "somewhere", ROWS)
MADE = [
    RowPrediction({"step_time_s": 1 + number / 7, ROOFLINE: 0.123456789, "used_bytes": 2e9}, True, number > 1)
    for number in range(3)
] + [RowPrediction(reason="there is none")]


def compared() -> list[Comparison]:
    intervals = {"step_time_s": (0.5, 1.2), "used_bytes": (1e9, 1.5e9)}
    return [replace(each, intervals=intervals) for each in comparisons(DATA, ROWS, iter(MADE))]


def test_a_table_gives_the_predictions_of_which_it_was_written(tmp_path: Path) -> None:
    write_rows(DATA, compared(), tmp_path)
    kept = read_predictions(DATA, tmp_path)
    assert kept[:3] == [as_written(each) for each in MADE[:3]] and kept[3].reason == "there is none"
    text = (tmp_path / "first.csv").read_text()
    write_rows(DATA, [replace(each, prediction=found) for each, found in zip(compared(), kept, strict=True)], tmp_path)
    assert (tmp_path / "first.csv").read_text() == text


def test_a_table_of_other_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MembenchError, match="run membench validate dataset=first first"):
        read_predictions(DATA, tmp_path)
    write_rows(DATA, compared()[1:], tmp_path)
    with pytest.raises(MembenchError, match="has other rows than the data set"):
        read_predictions(DATA, tmp_path)


def test_every_median_of_several_rows_has_an_interval(tmp_path: Path) -> None:
    found = summaries(DATA, compared())
    write_summary(found, tmp_path)
    write_page([(DATA, compared())], found, tmp_path)
    page = (tmp_path / "README.md").read_text()
    glance = next(line for line in page.splitlines() if line.startswith("| first | step time |"))
    assert "14.3 % (0.0 to 28.6)" in glance and "87.7 % (87.7 to 87.7)" in glance
    assert "| 100.0 % | 87.7 %" in glance  # inside of their intervals
    assert "median_low,median_high" in (tmp_path / "summary.csv").read_text()


def test_the_fraction_inside_is_that_of_all_rows_with_an_interval() -> None:
    outside = replace(compared()[0], intervals={"step_time_s": (1.1, 1.2)})
    times, memory = coverage([(DATA, compared()), (DATA, [outside])])
    assert (times.rows, times.inside, times.of_datasets) == (5, 0.8, 0.5)
    assert (memory.rows, memory.inside, memory.of_datasets) == (4, 0.0, 0.0)
    assert not coverage([(DATA, [replace(each, intervals={}) for each in compared()])])
