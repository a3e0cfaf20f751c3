"""Deviations by quantity: which numbers count, in which unit, and what remains without choices."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from membench.lab.papers.judging.deviations import deviations, spread, without_choices
from membench.lab.papers.reading.experiment import Choice, Remark, Selection
from membench.lab.papers.reading.quantities import Result
from tests.helpers.lab.papers import PAPER, ROW, numbers_of

Make = Callable[..., Result]


@pytest.mark.parametrize(
    ("unit", "papers", "ours", "quantity", "median"),
    [
        ("GB", 10.0, 12.0, "memory", "20.0 %"),
        ("s", 10.0, 8.0, "time", "20.0 %"),
        ("images", 64.0, 128.0, "batch size", "100 %"),
        ("x", 4.0, 3.0, "ratio", "25.0 %"),
        ("%", 60.0, 47.5, "percentage", "12.5 points"),
        ("%", 400.0, 300.0, "ratio", "25.0 %"),
        ("layers", 10.0, 11.0, "count", "10.0 %"),
    ],
)
def test_a_percentage_deviates_by_points_and_everything_else_by_a_fraction(
    unit: str, papers: float, ours: float, quantity: str, median: str, result: Make
) -> None:
    [line] = deviations(numbers_of(PAPER, [result(ours, row=replace(ROW, unit=unit, value=papers))]))
    assert line["quantity"] == quantity
    assert spread([line], quantity) == (1, median, median)


def test_a_number_stated_twice_counts_once_and_rests_on_the_choices_of_both(result: Make) -> None:
    rows = [replace(ROW, line=line, item=f"Sec {line}") for line in (2, 3)]
    paper = replace(PAPER, choices=(Choice("a unit", Selection({"item": ("Sec 3",)}), "why"),))
    [line] = deviations(numbers_of(paper, [result(120.0, row=row) for row in rows]))
    assert (line["item"], line["choice"]) == ("Sec 2", "a unit")
    assert without_choices([line]) == []


def test_fitted_numbers_one_sided_statements_and_what_does_not_run_have_no_deviation(result: Make) -> None:
    fitted = replace(PAPER, fitted=(Remark(Selection({}), "a fit"),))
    assert deviations(numbers_of(fitted, [result(120.0)])) == []
    assert deviations(numbers_of(PAPER, [result(120.0, limit="lower")])) == []
    assert deviations(numbers_of(PAPER, [result(None)])) == []


def test_median_and_ninetieth_percentile(result: Make) -> None:
    rows = [replace(ROW, line=line, item=f"Sec {line}") for line in range(2, 13)]
    lines = deviations(numbers_of(PAPER, [result(100.0 + 10 * n, row=row) for n, row in enumerate(rows)]))
    assert spread(lines, "memory") == (11, "50.0 %", "90.0 %")
    assert spread(lines, "time") == (0, "", "")
