"""Scoreboard and tables: columns, order, remarks and measured values."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from membench.lab.papers.judging.scoreboard import scoreboard
from membench.lab.papers.judging.tables import MeasuredValues, table
from membench.lab.papers.reading.experiment import Remark, Selection
from membench.lab.papers.reading.quantities import Result
from tests.helpers.lab.papers import PAPER, numbers_of

COLUMNS = [
    "item", "model", "dataset", "batch_size", "device", "system", "metric", "unit", "our_batch_size", "paper_value",
    "simulated_value", "measured_value", "deviation", "verdict", "fitted", "held_out", "choice", "can_fail",
    "at_papers_largest", "reason",
]  # fmt: skip


def test_rows_stand_in_the_order_of_the_reference_without_those_that_a_figure_shows(results: list[Result]) -> None:
    frame = pd.DataFrame(scoreboard(PAPER, results))
    assert list(frame.columns) == COLUMNS
    assert list(frame["verdict"]) == ["reproduced", "worse", "not_run"]
    assert list(frame["deviation"]) == ["0.010", "0.500", ""]
    assert list(frame["measured_value"]) == ["", "", ""]


def test_causes_and_inconsistencies_stand_in_the_reason(results: list[Result]) -> None:
    deep = Selection({"model": ("deep",)})
    paper = replace(PAPER, causes=(Remark(deep, "a cause"),), inconsistencies=(Remark(deep, "printed otherwise"),))
    reasons = [line["reason"] for line in scoreboard(paper, results)]
    assert reasons == ["", "a cause; printed otherwise", "other is not built yet"]
    assert numbers_of(paper, results).stated[1].reason.explanations == ("a cause", "printed otherwise")


def test_rows_that_the_model_was_fitted_on_are_marked(results: list[Result]) -> None:
    paper = replace(PAPER, fitted=(Remark(Selection({"model": ("small",)}), "fitted"),))
    fitted = [number.standing.fitted for number in numbers_of(paper, results).stated]
    assert fitted == [True, False, False]  # a row that was not run is not fitted
    reasons = [line["reason"] for line in scoreboard(paper, results)]
    assert ["fitted" in reason for reason in reasons] == fitted


def test_causes_are_given_for_deviations_only(results: list[Result]) -> None:
    paper = replace(PAPER, causes=(Remark(Selection({}), "a cause"),))
    reasons = [line["reason"] for line in scoreboard(paper, results)]
    assert ["a cause" in reason for reason in reasons] == [False, True, False]


def test_measured_values_are_merged_and_never_mixed_with_simulated_ones(results: list[Result], tmp_path: Path) -> None:
    folder = tmp_path / "some_gpu"
    folder.mkdir()
    (folder / "table1.csv").write_text(
        "item,model,batch_size,system,metric,measured_value\nTable 1,small,8,ours,memory,97.5\n"
    )
    frame = table(results, MeasuredValues(tmp_path))
    assert list(frame["measured_value"]) == ["", "97.5", "", ""]
    assert list(frame["simulated_value"]) == ["150", "101", "", "7"]
    assert frame["reason"][1] == "measured on some_gpu"
