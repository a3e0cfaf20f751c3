"""Predictions of rows: kept on disk, resumed, and a reason where there is none."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from membench.core.configuration import ROOT
from membench.lab.validation.dataset import load_dataset
from membench.lab.validation.errors import comparisons
from membench.lab.validation.predicting import predict_rows
from membench.lab.validation.predictions import Predictions, RowPrediction
from membench.lab.validation.rows import Row

ROWS = load_dataset(ROOT / "experiments" / "validation", "schedtune").rows


def constant(rows: Sequence[Row]) -> list[RowPrediction]:
    """Runs in a child process, which finds it by its name."""
    return [RowPrediction({"used_bytes": float(row.number)}) for row in rows]


def fail(rows: Sequence[Row]) -> list[RowPrediction]:
    raise AssertionError("a row with a current prediction was predicted again")


@pytest.mark.slow
def test_a_prediction_is_made_once(tmp_path: Path) -> None:
    rows = ROWS[:3]
    made = Predictions(tmp_path, constant).of(rows, workers=1)
    assert [each.values["used_bytes"] for each in made] == [0.0, 1.0, 2.0]
    assert Predictions(tmp_path, fail).of(rows, workers=1) == made


def test_rows_of_one_step_are_predicted_for_each_device() -> None:
    rows = [row for row in ROWS if row.network == "resnet18" and row.batch_size == 8]
    made = predict_rows(rows)
    used = {row.device: each.values["used_bytes"] for row, each in zip(rows, made, strict=True)}
    assert len(used) == 5 and len(set(used.values())) == 5
    assert all(each.fits and each.values["roofline_time_s"] < each.values["step_time_s"] for each in made)


def test_a_network_that_does_not_exist_is_a_reason() -> None:
    gone = {**ROWS[0].step["model"], "module": {"_target_": "torchvision.models.resnet17"}}
    (made,) = predict_rows([Row(0, "resnet17", "t4", {}, None, {**ROWS[0].step, "model": gone})])
    assert not made.values and "resnet17" in made.reason


@pytest.mark.slow
def test_a_published_step_of_litgpt_has_the_memory_that_was_measured() -> None:
    pytest.importorskip("bitsandbytes")
    dataset = load_dataset(ROOT / "experiments" / "validation", "litgpt")
    rows = [row for row in dataset.rows if row.values.get("method") == "adapter"][:2]
    assert {row.values["weights"] for row in rows} == {None, "nf4"}
    for found in comparisons(dataset, rows, iter(predict_rows([row])[0] for row in rows)):
        error = found.error("allocated_bytes")
        assert error is not None and abs(error) < 0.01


def test_a_row_that_is_not_run_has_its_reason() -> None:
    (made,) = predict_rows([replace(ROWS[0], reason="it is compiled")])
    assert made == RowPrediction(reason="it is compiled")


@pytest.mark.slow
def test_the_timed_step_and_what_is_around_it_make_the_time() -> None:
    row = next(row for row in ROWS if row.network == "resnet18" and row.batch_size == 8)
    larger = {**row.step, "batch_size": 16}
    (plain,), (timed,) = predict_rows([row]), predict_rows([replace(row, timed=larger, around_s=1.0)])
    (other,) = predict_rows([replace(row, step=larger)])
    assert timed.values["step_time_s"] == other.values["step_time_s"] + 1
    assert timed.values["reserved_bytes"] == plain.values["reserved_bytes"] < other.values["reserved_bytes"]
