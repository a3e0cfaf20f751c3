"""Sweeps on the command line whose cells go wrong, under each launcher, and sweeps that are stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from membench.core.configuration import ROOT
from membench.core.record import Outcome

FAULTS = ("Raises", "UsesUpMemory", "Exits", "IsKilled", "Hangs")  # the fault that ends the last child is last


def _needs(launcher: str) -> Any:
    module = f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher"
    is_there = find_spec("hydra_plugins") and find_spec(module)
    return pytest.mark.skipif(not is_there, reason=f"needs the extra of {launcher}: pip install membench[launchers]")


LAUNCHERS = [
    pytest.param("basic"),
    pytest.param("joblib", marks=[pytest.mark.exhaustive, _needs("joblib")]),
    pytest.param("submitit_local", marks=[pytest.mark.exhaustive, _needs("submitit")]),
]


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A job in the background ignores Ctrl-C, and sweeps that these tests start would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "membench", "-m", "model=lenet", "strategy=eager", *words]


def _start(directory: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        _command(*words),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _end(sweep: "subprocess.Popen[str]") -> tuple[int, str, str]:
    said, complained = sweep.communicate(timeout=240)
    return sweep.returncode, said, complained


def _records(directory: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the records that are kept, by strategy and batch size."""
    kept = [json.loads(path.read_text())["record"] for path in directory.glob("outputs/records/simulated/*.json")]
    return {
        (r["configuration"]["strategy"]["_target_"].rpartition(".")[2], r["configuration"]["batch_size"]): r
        for r in kept
    }


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_fault_is_a_record_and_the_sweep_goes_on(launcher: str, tmp_path: Path) -> None:
    targets = ["membench.strategies.eager.Eager", *(f"tests.helpers.sweep.faults.{fault}" for fault in FAULTS)]
    words = f"strategy._target_={','.join(targets)}"
    code, said, complained = _end(
        _start(tmp_path, words, "batch_size=4", "time_limit_s=5", f"hydra/launcher={launcher}")
    )
    assert code == 0, complained
    records = {strategy: record for (strategy, _), record in _records(tmp_path).items()}
    assert {name: (record["outcome"], record["signal"]) for name, record in records.items()} == {
        "Raises": (Outcome.FAILED, ""),
        "UsesUpMemory": (Outcome.OUT_OF_MEMORY, ""),
        "Exits": (Outcome.FAILED, ""),
        "IsKilled": (Outcome.FAILED, "SIGKILL"),
        "Hangs": (Outcome.TIMEOUT, "SIGKILL"),
        "Eager": (Outcome.OK, ""),
    }
    assert records["Raises"]["reason"].startswith("RuntimeError: no such luck (faults.py, line ")
    assert "in schedule" in records["Raises"]["stderr_tail"]
    assert "exited with code 3" in records["Exits"]["reason"]
    assert "last words" in records["IsKilled"]["stderr_tail"]
    assert "6 cells: 1 ok, 1 out of memory, 1 timeout, 3 failed\n" in said
    assert len(list(tmp_path.glob("outputs/*/*/*/record.json"))) == 6


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive),
        signal.SIGKILL,
    ],
)
def test_a_sweep_that_was_stopped_finishes_the_rest_only(launcher: str, end: signal.Signals, tmp_path: Path) -> None:
    """The third of six cells waits; the sweep is ended there, and run again."""
    hold = tmp_path / "hold"
    hold.touch()
    words = [
        "strategy._target_=membench.strategies.eager.Eager,tests.helpers.sweep.faults.Held",
        "batch_size=4,5,6",
        f"hydra/launcher={launcher}",
        *(["hydra.launcher.n_jobs=1"] if launcher == "joblib" else []),
    ]
    sweep = _start(tmp_path, *words)
    while len(_records(tmp_path)) < 3 and sweep.poll() is None:
        time.sleep(0.1)
    os.killpg(sweep.pid, end)
    code, _, complained = _end(sweep)
    if end is not signal.SIGKILL and launcher == "basic":
        assert (code, complained.count("\n")) == ({signal.SIGINT: 130, signal.SIGTERM: 143}[end], 1)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("outputs/records/simulated/*.json")}
    assert len(kept) == 3
    hold.unlink()
    code, said, complained = _end(_start(tmp_path, *words, "strict=true"))
    assert code == 0, complained
    assert "6 cells: 6 ok" in said
    assert len(_records(tmp_path)) == 6
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.exhaustive
def test_two_sweeps_at_once_share_their_records(tmp_path: Path) -> None:
    words = ["batch_size=4,5,6", "strict=true"]
    for code, said, complained in [_end(sweep) for sweep in [_start(tmp_path, *words) for _ in range(2)]]:
        assert (code, complained) == (0, "")
        assert "3 cells: 3 ok" in said
    assert sorted(batch_size for _, batch_size in _records(tmp_path)) == [4, 5, 6]
    assert len(list(tmp_path.glob("outputs/records/simulated/*"))) == 3
    assert len(list(tmp_path.glob("outputs/2*/*/*/record.json"))) == 6


@pytest.mark.exhaustive
def test_a_sweep_whose_reader_has_enough_keeps_what_it_made(tmp_path: Path) -> None:
    sweep = _start(tmp_path, "batch_size=4,5")
    assert sweep.stdout and sweep.stderr
    sweep.stdout.close()
    with sweep.stderr as complained:
        assert (complained.read(), sweep.wait(timeout=240)) == ("", 141)
    assert len(_records(tmp_path)) == 1
