"""How much an agreement proves: fitted and held-out rows, declared choices, and rows that cannot fail."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from membench.core.record import Outcome
from membench.lab.papers.judging.scoreboard import scoreboard
from membench.lab.papers.judging.standing import standing_of
from membench.lab.papers.judging.verdicts import Verdict
from membench.lab.papers.reading.experiment import Answer, Choice, Quantity, Remark, Selection
from membench.lab.papers.reading.quantities import Result, evaluate
from tests.helpers.lab.papers import PAPER, ROW, cell, numbers_of, record

Make = Callable[..., Result]
OURS = Selection({"system": ("ours",)})


def test_a_fitted_row_is_not_held_out(result: Make) -> None:
    paper = replace(PAPER, fitted=(Remark(OURS, "a fit"),), held_out=(Remark(Selection({}), "a rule"),))
    fitted = standing_of(paper, result(100.0), Verdict.REPRODUCED)
    held_out = standing_of(paper, result(100.0, row=replace(ROW, system="base")), Verdict.WORSE)
    assert (fitted.fitted, fitted.held_out, fitted.is_predicted) == (True, False, False)
    assert (held_out.fitted, held_out.held_out, held_out.is_predicted) == (False, True, False)


def test_choices_are_named_with_the_rows_that_rest_on_them(result: Make) -> None:
    paper = replace(PAPER, choices=(Choice("a unit", OURS, "why"), Choice("a split", Selection({}), "why")))
    lines = scoreboard(paper, [result(101.0), result(1.0, row=replace(ROW, system="base", line=3))])
    assert [line["choice"] for line in lines] == ["a unit; a split", "a split"]
    summary = numbers_of(paper, [result(101.0)]).predicted
    assert (summary.agree, summary.on_choice) == (1, 1)


@pytest.mark.parametrize(
    ("changed", "certain"),
    [
        ({"limit": "lower"}, True),
        ({"limit": "upper"}, False),  # it does not hold, so it could fail
        ({}, False),
    ],
)
def test_one_sided_statements_that_hold_cannot_fail(changed: dict[str, str], certain: bool, result: Make) -> None:
    [line] = scoreboard(PAPER, [result(109.0, **changed)])
    assert line["can_fail"] == str(not certain).lower()


@pytest.mark.parametrize(("needed", "can_fail"), [(2000, "false"), (1100, "true")])
def test_a_card_that_is_exceeded_by_far_cannot_fail(needed: int, can_fail: str) -> None:
    row = replace(ROW, value=None, oom=True)
    too_big = record(Outcome.OUT_OF_MEMORY, required_memory_bytes=needed, capacity_bytes=1000)
    answer = Answer(Selection({}), value=Quantity("peak_memory_bytes"))
    [line] = scoreboard(PAPER, [evaluate(PAPER, row, answer, {cell(): too_big})])
    assert (line["verdict"], line["can_fail"]) == ("out_of_memory_as_in_paper", can_fail)
    assert ("cannot fail: the step needs 2.0 times" in line["reason"]) == (can_fail == "false")


def test_declared_rows_cannot_fail_and_give_the_reason(result: Make) -> None:
    paper = replace(PAPER, cannot_fail=(Remark(OURS, "the budget is an input"),))
    [line] = scoreboard(paper, [result(100.0)])
    assert (line["can_fail"], line["reason"]) == ("false", "cannot fail: the budget is an input")
    assert scoreboard(paper, [result(150.0)])[0]["can_fail"] == "true"
    assert numbers_of(paper, [result(100.0)]).predicted.certain == 1


def test_rows_that_are_not_judged_have_no_standing() -> None:
    listed = Result(ROW, Answer(OURS, input="a batch size"))
    paper = replace(PAPER, fitted=(Remark(OURS, "a fit"),))
    [line] = scoreboard(paper, [listed])
    assert [line[name] for name in ("fitted", "held_out", "choice", "can_fail")] == ["", "", "", ""]


def test_equal_values_count_once(result: Make) -> None:
    rows = [replace(ROW, line=line, item=f"Sec {line}") for line in (2, 3, 4)]
    gigabytes = replace(ROW, line=5, unit="GB", value=0.1)
    values = [result(100.0, row=rows[0]), result(100.0, row=rows[1]), result(101.0, row=rows[2])]
    summary = numbers_of(PAPER, [*values, result(100 / 1024, row=gigabytes)]).predicted
    assert (summary.agree, summary.distinct) == (4, 2)
