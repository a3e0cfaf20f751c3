"""Values from records: forms, means, units, and what happens when a run gave none."""

from dataclasses import replace
from typing import Any

import pytest

from membench.core.record import LARGEST, Outcome, Record
from membench.core.units import GIB, MIB
from membench.lab.papers.pages.measured_columns import measured_rows
from membench.lab.papers.reading.experiment import Answer, Experiment, Form, Paper, PaperCell, Selection, Take
from membench.lab.papers.reading.quantities import cells_of, evaluate
from tests.helpers.lab.papers import PAPER, ROW, answer, cell, record

RECORDS = {
    cell(): record(peak_memory_bytes=50 * MIB, map_memory_bytes=MIB, step_time_s=3.0),
    cell(system="base"): record(peak_memory_bytes=200 * MIB, map_memory_bytes=4 * MIB, step_time_s=2.0),
    cell("deep"): record(Outcome.OUT_OF_MEMORY, required_memory_bytes=90 * GIB, map_memory_bytes=2 * MIB),
    cell("deep", "base"): record(Outcome.OUT_OF_MEMORY, map_memory_bytes=80 * MIB),
    cell(batch_size=LARGEST): record(batch_size=64),
}


def _value(unit: str = "MB", **quantity: Any) -> float | None:
    return evaluate(PAPER, replace(ROW, unit=unit), answer(**quantity), RECORDS).value


def test_bytes_become_the_unit_that_the_row_prints() -> None:
    assert _value() == 50
    assert _value(unit="GB") == 50 / 1024
    assert _value(metric="step_time_s", unit="s", times=20) == 60


@pytest.mark.parametrize(
    ("form", "expected"),
    [(Form.INCREASE_PERCENT, -75), (Form.REDUCTION_PERCENT, 75), (Form.PERCENT, 25), (Form.RATIO, 0.25)],
)
def test_forms_compare_with_the_reference(form: Form, expected: float) -> None:
    assert _value(unit="%", form=form, reference={"system": "base"}) == pytest.approx(expected)


def test_a_difference_keeps_the_unit() -> None:
    assert _value(form=Form.DIFFERENCE, reference={"system": "base"}) == -150


def test_a_reference_may_be_another_metric() -> None:
    assert (
        _value(unit="%", metric="map_memory_bytes", form=Form.PERCENT, reference={"metric": "peak_memory_bytes"}) == 2
    )


def test_means_run_over_models() -> None:
    assert _value(metric="map_memory_bytes", take=Take.MEAN, over={"model": ("small", "deep")}) == 1.5
    assert _value(metric="map_memory_bytes", take=Take.MAX, over={"model": ("small", "deep")}) == 2


def test_what_is_counted_exists_for_a_step_that_does_not_fit_and_what_runs_does_not() -> None:
    row = replace(ROW, model="deep")
    assert evaluate(PAPER, row, answer("map_memory_bytes"), RECORDS).value == 2
    result = evaluate(PAPER, row, answer("peak_memory_bytes"), RECORDS)
    assert (result.value, result.outcome) == (None, Outcome.OUT_OF_MEMORY)
    assert result.reason == "deep by ours: too big"


def test_a_metric_may_be_that_of_a_layer() -> None:
    of_layers = replace(record(), layer_metrics={"layer_map_bytes:conv1": 3.0 * MIB})
    assert evaluate(PAPER, ROW, answer("layer_map_bytes:conv1"), {cell(): of_layers}).value == 3


def test_the_largest_batch_is_that_of_the_record_found() -> None:
    quantity = {"metric": "batch_size", "cell": {"batch_size": LARGEST}}
    assert _value(unit="images", **quantity) == 64
    assert _value(unit="x", form=Form.RATIO, reference={"batch_size": "normal"}, **quantity) == 8


def test_the_batch_size_that_was_run_is_ours_where_the_paper_states_none() -> None:
    records = {cell(batch_size=None): record(batch_size=32, peak_memory_bytes=MIB)}
    result = evaluate(PAPER, replace(ROW, batch_size=None), answer(), records)
    assert (result.our_batch_size, result.row.batch_size) == (32, None)


def half_of_it(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    return record.metrics["step_time_s"] / 2 if record.outcome is Outcome.OK else None


def ten_times_the_batch(paper: Paper, cell: PaperCell) -> dict[str, float]:
    return {"many": 10.0 * int(cell.batch_size or 0)}


def test_a_paper_may_have_metrics_of_its_own_from_a_record() -> None:
    paper = replace(PAPER, record_metrics={"half_s": f"{__name__}.half_of_it"})
    assert evaluate(paper, replace(ROW, unit="s"), answer("half_s"), RECORDS).value == 1.5
    result = evaluate(paper, replace(ROW, model="deep"), answer("half_s"), RECORDS)
    assert (result.value, result.outcome, result.reason) == (None, Outcome.OUT_OF_MEMORY, "deep by ours: too big")


def test_a_system_may_be_a_function_in_place_of_a_run() -> None:
    systems = {**PAPER.systems, "computed": {"function": f"{__name__}.ten_times_the_batch"}}
    paper, row = replace(PAPER, systems=systems), replace(ROW, system="computed", unit="x", batch_size=None)
    quantity = answer("many", cell={"batch_size": "normal"})
    assert not list(cells_of(paper, row, quantity))
    result = evaluate(paper, row, quantity, {})
    assert (result.value, result.our_batch_size) == (80, 8)
    assert "has no other" in evaluate(paper, row, answer("other"), {}).reason


def test_what_is_computed_without_a_run_is_not_measured() -> None:
    systems = {**PAPER.systems, "computed": {"function": f"{__name__}.ten_times_the_batch"}}
    computed = replace(ROW, system="computed", unit="x"), answer("many")
    paper = replace(PAPER, systems=systems, experiments=(Experiment("one", "", (computed, (ROW, answer()))),))
    assert list(measured_rows(paper, RECORDS)["system"]) == ["ours"]


def test_a_missing_metric_is_not_zero() -> None:
    result = evaluate(PAPER, ROW, answer("overhead_bytes"), RECORDS)
    assert (result.value, result.outcome) == (None, Outcome.FAILED)
    assert "overhead_bytes" in result.reason


def test_a_reference_has_the_budget_of_the_cell_unless_it_names_another() -> None:
    over = {"take": Take.MEAN, "over": {"budget": ("6 GB", "3 GB")}}
    ratio = answer(form=Form.RATIO, reference={"system": "base"}, **over)
    budgets = [(cell.system, cell.budget) for cell in dict.fromkeys(cells_of(PAPER, ROW, ratio))]
    assert budgets == [("ours", "6 GB"), ("base", "6 GB"), ("ours", "3 GB"), ("base", "3 GB")]
    free = answer(form=Form.RATIO, reference={"system": "base", "budget": None}, **over)
    assert {cell.budget for cell in cells_of(PAPER, ROW, free) if cell.system == "base"} == {None}


def test_a_row_at_the_largest_batch_is_ours_at_ours_and_keeps_the_value_at_the_papers() -> None:
    row = replace(ROW, batch_size=96, unit="s")
    records = {
        cell(batch_size=LARGEST): record(batch_size=64, step_time_s=4.0),
        cell(batch_size=96): record(Outcome.OUT_OF_MEMORY),
    }
    largest = replace(answer("step_time_s", cell={"batch_size": LARGEST}), papers_largest=96)
    assert {*cells_of(PAPER, row, largest)} == {*records}
    result = evaluate(PAPER, row, largest, records)
    assert (result.value, result.our_batch_size) == (4.0, 64)
    other = result.at_papers_largest
    assert other is not None
    assert (other.value, other.outcome, other.our_batch_size) == (None, Outcome.OUT_OF_MEMORY, None)
    assert (
        evaluate(PAPER, row, answer("step_time_s"), {cell(batch_size=96): record(step_time_s=5.0)}).at_papers_largest
        is None
    )


def test_a_ratio_to_zero_has_no_value() -> None:
    records = RECORDS | {cell(system="base"): record(transferred_bytes=0)}
    records[cell()] = record(transferred_bytes=5)
    ratio = answer("transferred_bytes", form=Form.RATIO, reference={"system": "base"})
    result = evaluate(PAPER, replace(ROW, unit="x"), ratio, records)
    assert (result.value, result.outcome) == (None, Outcome.OK)
    assert result.reason == "small by base: transferred_bytes is 0, so there is no ratio"


def test_cells_of_a_quantity_include_its_reference() -> None:
    ratio = answer(form=Form.RATIO, reference={"system": "base"})
    assert [*dict.fromkeys(cells_of(PAPER, ROW, ratio))] == [cell(), cell(system="base")]


def test_rows_without_a_quantity_have_no_value() -> None:
    result = evaluate(PAPER, ROW, Answer(Selection({}), not_run="not built"), {})
    assert (result.value, result.outcome, result.reason) == (None, None, "not built")
