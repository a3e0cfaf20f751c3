"""A sweep is one W&B run; an offline one is read back from its files, without a network."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

from membench.suite.tracking import Tracking, log_sweep

ROWS = pd.DataFrame({"model": ["lenet", "alexnet"], "peak_memory_bytes": [1, 2]})


def _log(tracking: Tracking) -> Path | None:
    return log_sweep(
        tracking,
        ROWS,
        name="a sweep",
        group="sweeps",
        job_type="report",
        tags=["paper:layrub", "device:k40m"],
        configuration={"paper": "layrub"},
        summary={"agree": 7},
    )


def test_disabled_writes_nothing(tmp_path: Path) -> None:
    assert _log(Tracking("disabled", "membench", str(tmp_path / "none"))) is None
    assert not (tmp_path / "none").exists()


def test_offline_run_is_read_back(tmp_path: Path) -> None:
    run = _log(Tracking("offline", "membench", str(tmp_path)))
    assert run is not None
    text = _inspect(run)
    for expected in ("a sweep", "sweeps", "report", "paper:layrub", "device:k40m"):
        assert expected in text, expected
    records = [json.loads(line) for line in text.splitlines()]
    history = [record for record in records if "history" in json.dumps(record)]
    assert any("agree" in json.dumps(record) and "7" in json.dumps(record) for record in history)
    tables = [json.loads(path.read_text()) for path in run.rglob("*.table.json")]
    assert [(table["columns"], table["data"]) for table in tables] == [
        (["model", "peak_memory_bytes"], [["lenet", 1], ["alexnet", 2]])
    ]


def _inspect(run: Path) -> str:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
