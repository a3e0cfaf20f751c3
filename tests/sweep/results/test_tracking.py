"""A sweep is one report run and a run for each cell; offline ones are read back from their files, without a network."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import wandb

from membench.core.errors import MembenchError
from membench.core.record import LARGEST, Outcome
from membench.sweep.results.tracked import CELLS, Sweep, Tracking, cell_rows
from membench.sweep.results.tracking import check_tracking, log_sweep
from membench.sweep.results.wandb_runs import without_stderr
from tests.helpers.sweep.cells import small_cell
from tests.helpers.sweep.jobs import record_of

ROWS = [{"model": "lenet", "peak_memory_bytes": 1}, {"model": "alexnet", "peak_memory_bytes": 2}]
GOOD = record_of(small_cell(), peak_memory_bytes=1.0)
BAD = replace(record_of(small_cell(batch_size=5), Outcome.FAILED), stderr_tail="no such luck")
SWEEP = Sweep(
    name="a sweep",
    group="sweeps/7",
    tags=["paper:layrub", "device:k40m"],
    configuration={"paper": "layrub"},
    summary={"agree": 7},
    tables={"rows": ROWS},
    files={},
    records=[GOOD, BAD],
)


SEARCHED = [
    (small_cell(), record_of(small_cell(), peak_memory_bytes=1.0, images_per_s=10.0)),
    (small_cell(batch_size=LARGEST), record_of(small_cell(batch_size=64), peak_memory_bytes=9.0, images_per_s=30.0)),
    (small_cell(budget="1 MB"), record_of(small_cell(budget="1 MB"), Outcome.INFEASIBLE)),
]


def test_a_cells_row_has_the_largest_batch_of_the_same_configuration() -> None:
    rows = cell_rows(SEARCHED)
    assert [row["largest_batch_size"] for row in rows] == [64, 64, None]
    assert [row["batch_size"] for row in rows] == [small_cell()["batch_size"], 64, small_cell()["batch_size"]]


def test_a_run_online_without_a_key_ends_before_any_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login`")

    monkeypatch.setattr(wandb, "login", refuse)
    check_tracking(Tracking("offline", "membench", "", True))
    with pytest.raises(MembenchError, match=r"^W&B cannot log online \(No API key configured. Use `wandb login`\); "):
        check_tracking(Tracking("online", "membench", "", True))


def test_disabled_writes_nothing(tmp_path: Path) -> None:
    assert log_sweep(Tracking("disabled", "membench", str(tmp_path / "none"), True), SWEEP) is None
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("refusal", [wandb.errors.UsageError, ValueError])
def test_a_sweep_refused_by_wandb_is_not_an_error(
    refusal: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: Any) -> None:
        raise refusal("no API key\nconfigured")

    monkeypatch.setattr(wandb, "init", refuse)
    assert log_sweep(Tracking("online", "membench", str(tmp_path), True), SWEEP) is None
    assert capsys.readouterr().err.startswith("W&B has not logged this (no API key configured); tracking=offline")


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The content of each offline run in the order of the folders: cells first, the report last."""
    directory = tmp_path_factory.mktemp("tracking")
    file = directory / "table.csv"
    file.write_text("model\n")
    picture = directory / "figure9.png"
    plt.imsave(picture, [[0.0, 1.0]])
    sweep = replace(
        SWEEP,
        tables={"rows": ROWS, CELLS: cell_rows(SEARCHED)},
        files={"table.csv": file},
        pictures={picture.stem: picture},
    )
    run = log_sweep(Tracking("offline", "membench", str(directory / "outputs"), True), sweep)
    assert run is not None
    tables = [json.loads(path.read_text()) for path in run.rglob("*.table.json")]
    assert (["model", "peak_memory_bytes"], [["lenet", 1], ["alexnet", 2]]) in [
        (table["columns"], table["data"]) for table in tables
    ]
    plotted = {tuple(table["columns"]): table["data"] for table in tables if table["columns"][-1] == "cell"}
    assert plotted == {
        ("peak_memory_bytes", "images_per_s", "cell"): [[1.0, 10.0, "lenet eager"], [9.0, 30.0, "lenet eager"]],
        ("peak_memory_bytes", "largest_batch_size", "cell"): [[1.0, 64, "lenet eager"], [9.0, 64, "lenet eager"]],
        ("images_per_s", "largest_batch_size", "cell"): [[10.0, 64, "lenet eager"], [30.0, 64, "lenet eager"]],
    }
    [image] = run.rglob("*.png")
    assert image.read_bytes() == picture.read_bytes()
    others = [path for path in run.parent.glob("offline-run-*") if path != run]
    return {"report": _inspect(run), **{f"cell {i}": _inspect(path) for i, path in enumerate(sorted(others))}}


def test_the_report_run_has_the_table_the_counts_and_the_files(logged: dict[str, str]) -> None:
    report = logged["report"]
    for expected in (
        *("a sweep", "sweeps/7", "report", "paper:layrub", "agree", "cells_failed", "table.csv", "figures/figure9"),
        *("commit", "devices", "arithmetic_ops_per_s", "frameworks", "versions"),
    ):
        assert expected in report, expected
    assert _exit_code(report) == 1


def test_each_cell_has_a_run_in_the_group_and_a_failed_one_is_marked(logged: dict[str, str]) -> None:
    cells = [text for name, text in logged.items() if name != "report"]
    assert len(cells) == 2
    assert all("sweeps/7" in text for text in cells)
    assert sorted(map(_exit_code, cells)) == [0, 1]


def test_what_a_failed_cell_printed_is_not_uploaded(logged: dict[str, str], tmp_path: Path) -> None:
    assert not [name for name, text in logged.items() if "no such luck" in text]
    (record := tmp_path / "record.json").write_text(BAD.to_json())
    assert "no such luck" not in without_stderr(record)
    assert json.loads(without_stderr(record))["outcome"] == "failed"


def test_cells_have_no_runs_where_they_are_too_many(tmp_path: Path) -> None:
    log_sweep(Tracking("offline", "membench", str(tmp_path), False), SWEEP)
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 1


def test_hostile_names_are_logged_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "../<script>`x`$(y)\n'" + 200 * "é"
    record = record_of(small_cell(model={"name": name}))
    sweep = replace(SWEEP, group=name, name=name, records=[record])
    run = log_sweep(Tracking("offline", "membench", str(tmp_path / "in"), True), sweep)
    assert run is not None and run.is_relative_to(tmp_path / "in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert capsys.readouterr().err == ""


def _exit_code(text: str) -> int:
    exits: list[Any] = [json.loads(line) for line in text.splitlines() if '"exit"' in line]
    assert len(exits) == 1, exits
    return int(_find(exits[0], "exit").get("exit_code", _find(exits[0], "exit").get("exitCode", 0)))


def _find(value: Any, name: str) -> Any:
    """Return what a mapping of this name holds, wherever it lies."""
    if isinstance(value, dict):
        if name in value:
            return value[name]
        return next((found for inner in value.values() if (found := _find(inner, name)) is not None), None)
    return None


def _inspect(run: Path) -> str:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
