"""What a paper's verdicts, orders and deviations are under an alternative to a choice."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from membench.lab.papers.judging.sensitivity import (
    COLUMNS,
    ROW_COLUMNS,
    Read,
    alternative_line,
    base_line,
    not_run_line,
    row_lines,
    sensitivity_table,
    with_stated_rows_only,
)
from membench.lab.papers.reading.experiment import Alternative, Order, Selection
from membench.lab.papers.reading.quantities import Result
from tests.helpers.lab.papers import PAPER, ROW, numbers_of

Make = Callable[..., Result]
PAPER_WITH_ORDER = replace(PAPER, orders=(Order("memory", Selection({}), across=(("system",),)),))
OTHER = Alternative("a unit", "bytes", source="Section 3")


def _read(result: Make, ours: Sequence[float]) -> Read:
    papers = (100.0, 200.0, 300.0)
    rows = [replace(ROW, system=f"method {line}", value=value, line=line) for line, value in enumerate(papers, start=2)]
    return Read.of(
        numbers_of(PAPER_WITH_ORDER, [result(value, row=row) for value, row in zip(ours, rows, strict=True)])
    )


def test_gained_and_lost_rows_and_pairs_are_counted(result: Make) -> None:
    base, other = _read(result, (101, 200, 400)), _read(result, (150, 120, 301))
    line = alternative_line(base, OTHER, other)
    assert list(line) == list(COLUMNS)
    found = {name: line[name] for name in COLUMNS[3:10]}
    assert found == {
        "values_changed": "3",
        "reproduced": "1",
        "rows_gained": "1",
        "rows_lost": "2",
        "pairs_agree": "2",
        "pairs_gained": "0",
        "pairs_lost": "1",
    }
    assert (base_line(base)["reproduced"], base_line(base)["pairs_agree"]) == ("2", "3")
    rows = row_lines(base, OTHER, other)
    assert [(row["system"], row["verdict_before"], row["verdict_after"]) for row in rows] == [
        ("method 2", "reproduced", "worse"),
        ("method 3", "reproduced", "better"),
        ("method 4", "worse", "reproduced"),
    ]
    assert list(rows[0]) == list(ROW_COLUMNS)


def test_an_alternative_without_influence_changes_nothing(result: Make) -> None:
    base = _read(result, (101, 200, 400))
    line = alternative_line(base, OTHER, base)
    assert {line[name] for name in ("values_changed", "rows_gained", "rows_lost", "pairs_gained", "pairs_lost")} == {
        "0"
    }
    assert row_lines(base, OTHER, base) == []


def test_the_page_shows_moves_and_the_medians_that_change(result: Make) -> None:
    base, other = _read(result, (101, 200, 400)), _read(result, (150, 120, 301))
    untried = Alternative("a unit", "words", not_run="there is no such code")
    lines = [base_line(base), alternative_line(base, OTHER, other), not_run_line(untried)]
    assert sensitivity_table(lines).rows == [
        ("", "as chosen", "", "", "2", "3", "memory: 1.0 %"),
        ("a unit", "bytes", "Section 3", "3", "1 (+1, -2)", "2 (-1)", "memory: 40.0 %"),
        ("a unit", "words", "", "", "", "", "not run: there is no such code"),
    ]
    assert sensitivity_table([]).rows == []


def test_values_that_figures_show_are_not_run_again(result: Make) -> None:
    shown = result(1.0, row=replace(ROW, line=None, value=None))
    paper = with_stated_rows_only(numbers_of(PAPER, [result(100.0), shown]).paper)
    assert [row.line for each in paper.experiments for row, _ in each.rows] == [2]
