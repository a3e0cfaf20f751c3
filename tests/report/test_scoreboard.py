"""Scoreboard and tables: columns, order, remarks, measured values, and the page."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from membench.experiment import Answer, Remark, Selection
from membench.report.quantities import Result
from membench.report.scoreboard import TOTALS_COLUMNS, overview, page, score, scoreboard, summarize, totals
from membench.report.tables import Measured, table
from tests.report.conftest import PAPER, ROW

Make = Callable[..., Result]
COLUMNS = [
    "item", "model", "dataset", "batch_size", "device", "system", "metric", "unit", "paper_value",
    "simulated_value", "measured_value", "deviation", "verdict", "reason",
]  # fmt: skip


def _results(make: Make) -> list[Result]:
    deviating = replace(ROW, model="deep", line=3)
    return [
        make(150.0, row=deviating),
        make(101.0),
        Result(replace(ROW, system="other", line=4), Answer(Selection({}), not_run="other is not built yet")),
        make(7.0, row=replace(ROW, item="Figure 1", value=None, line=None)),
    ]


def test_rows_stand_in_the_order_of_the_reference_without_those_that_a_figure_shows(result: Make) -> None:
    frame = scoreboard(score(PAPER, _results(result)), Measured(Path("nowhere")))
    assert list(frame.columns) == COLUMNS
    assert list(frame["verdict"]) == ["reproduced", "worse", "not_run"]
    assert list(frame["deviation"]) == ["0.010", "0.500", ""]
    assert list(frame["measured_value"]) == ["", "", ""]


def test_causes_and_inconsistencies_stand_in_the_reason(result: Make) -> None:
    deep = Selection({"model": ("deep",)})
    paper = replace(
        PAPER, causes=(Remark(deep, "a cause"),), inconsistencies=(Remark(deep, "printed otherwise"),)
    )
    scores = score(paper, _results(result))
    assert [entry.judgement.reason for entry in scores] == [
        "",
        "a cause; printed otherwise",
        "other is not built yet",
    ]
    assert "| a cause; printed otherwise |" in page(paper, scores)


def test_rows_that_the_model_was_fitted_on_are_counted_apart(result: Make) -> None:
    paper = replace(PAPER, calibration=(Remark(Selection({"model": ("small",)}), "fitted"),))
    scores = score(paper, _results(result))
    assert [entry.calibrated for entry in scores] == [
        True,
        False,
        False,
    ]  # what was not run was not fitted on
    assert summarize(scores).calibrated == 1
    assert "**0 of 1 predicted numbers reproduced**, 1 deviate; 1 not run" in page(paper, scores)


def test_the_overview_counts_each_number_once_and_links_to_the_paper(result: Make) -> None:
    paper = replace(
        PAPER,
        title="vDNN: (virtual) memory-efficient networks",
        calibration=(Remark(Selection({"model": ("small",)}), "fitted"),),
    )
    line = totals(paper, score(paper, _results(result)))
    assert list(line) == list(TOTALS_COLUMNS)
    text = overview([line, {**line, "Paper": "EPMC"}])
    assert "| [vDNN](#vdnn-virtual-memory-efficient-networks) |  |  | 1 | 1 | 1 |  |" in text
    assert "| [EPMC](#epmc) |" in text


def test_a_cause_is_only_said_of_a_deviation(result: Make) -> None:
    paper = replace(PAPER, causes=(Remark(Selection({}), "a cause"),))
    reasons = [entry.judgement.reason for entry in score(paper, _results(result))]
    assert ["a cause" in reason for reason in reasons] == [False, True, False]


def test_measured_values_are_merged_and_never_mixed_with_simulated_ones(result: Make, tmp_path: Path) -> None:
    folder = tmp_path / "some_gpu"
    folder.mkdir()
    (folder / "table1.csv").write_text(
        "item,model,batch_size,system,metric,measured_value\nTable 1,small,8,ours,memory,97.5\n"
    )
    frame = table(_results(result), Measured(tmp_path))
    assert list(frame["measured_value"]) == ["", "97.5", "", ""]
    assert list(frame["simulated_value"]) == ["150", "101", "", "7"]
    assert frame["reason"][1] == "measured on some_gpu"
