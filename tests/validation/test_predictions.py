"""Predictions of rows: kept on disk, resumed, and a reason where there is none."""

from collections.abc import Sequence
from pathlib import Path

from membench.core.configuration import ROOT
from membench.validation.dataset import load_dataset
from membench.validation.predicting import predict_rows
from membench.validation.predictions import Predictions, RowPrediction
from membench.validation.rows import Row

ROWS = load_dataset(ROOT / "experiments" / "validation", "schedtune").rows


def constant(rows: Sequence[Row]) -> list[RowPrediction]:
    """Runs in a child process, which finds it by its name."""
    return [RowPrediction({"used_bytes": float(row.number)}) for row in rows]


def fail(rows: Sequence[Row]) -> list[RowPrediction]:
    raise AssertionError("a row with a current prediction was predicted again")


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
