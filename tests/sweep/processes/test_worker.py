"""A worker's child: its records, its time limit, its end. What kills it is injected in `test_sweep`."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import pytest

from membench.core.record import Outcome
from membench.sweep.cells.run import run_cell
from membench.sweep.processes.worker import Interrupted, Worker, Workers
from tests.helpers.sweep.cells import small_cell


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker({})
    yield worker
    worker.close()


def _is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def _wait_for(path: Path) -> str:
    while not (path.exists() and path.read_text()):
        time.sleep(0.02)
    return path.read_text()


def test_a_child_makes_the_record_that_this_process_would(worker: Worker) -> None:
    assert worker.run(small_cell()) == run_cell(small_cell())


def test_signals_that_announce_the_end_of_a_job_do_not_fail_its_cell(worker: Worker, tmp_path: Path) -> None:
    """Slurm sends them to every process of a job that is cancelled, preempted or out of time."""
    worker.run(small_cell())
    note, hold = tmp_path / "started", tmp_path / "hold"
    hold.touch()

    def announce() -> None:
        child = int(_wait_for(note))
        for announcement in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(child, announcement)
        hold.unlink()

    thread = threading.Thread(target=announce)
    thread.start()
    held = {"_target_": "tests.helpers.sweep.faults.Held", "note": str(note), "hold": str(hold)}
    assert worker.run(small_cell(strategy=held)).outcome is Outcome.OK
    thread.join(timeout=10)
    assert not hold.exists()


class ClockOf:
    """A clock on which ages pass once a file is there, so that a time limit waits for a slow process to start."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def monotonic(self) -> float:
        return time.monotonic() + 1e6 * self.note.exists()


def test_the_time_limit_stops_a_cell_and_all_that_it_started(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.run(small_cell())
    note = tmp_path / "started"
    monkeypatch.setattr("membench.sweep.processes.worker.time", ClockOf(note))
    hangs = {"_target_": "tests.helpers.sweep.faults.Hangs", "note": str(note)}
    record = worker.run(small_cell(strategy=hangs), time_limit_s=1000)
    assert (record.outcome, record.signal) == (Outcome.TIMEOUT, "SIGKILL")
    assert "not done after 1000 s" in record.reason
    assert not _is_alive(int(note.read_text()))


class Prepared:
    """In place of a worker: whether it was started before it had a cell."""

    ran: ClassVar[list[bool]] = []

    def __init__(self, environment: object) -> None:
        self.is_started = self.is_closed = False

    def start(self) -> None:
        self.is_started = True

    def run(self, configuration: object, time_limit_s: object) -> None:
        self.ran.append(self.is_started)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(("backend", "prepared"), [("cuda", [False, True, True]), ("cpu", [False] * 3)])
def test_the_next_cell_of_a_gpu_has_a_child_that_imports_meanwhile(
    backend: str, prepared: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on the CPU, whose cells would be measured beside it."""
    module = "membench.sweep.processes.worker"
    monkeypatch.setattr(f"{module}.Worker", Prepared)
    monkeypatch.setattr(f"{module}.free_gpu", lambda gpus: nullcontext({"CUDA_VISIBLE_DEVICES": "one"}))
    monkeypatch.setattr(Prepared, "ran", [])
    with Workers() as workers:
        for _ in prepared:
            workers.run(small_cell(backend={"name": backend}))
    assert Prepared.ran == prepared


@pytest.mark.slow
def test_closing_workers_interrupts_a_cell_that_runs(tmp_path: Path) -> None:
    note, ended = tmp_path / "started", []
    hangs = {"_target_": "tests.helpers.sweep.faults.Hangs", "note": str(note)}
    workers = Workers()

    def run() -> None:
        try:
            workers.run(small_cell(strategy=hangs))
        except Interrupted as interrupted:
            ended.append(interrupted)

    thread = threading.Thread(target=run)
    thread.start()
    started = int(_wait_for(note))
    workers.close()
    thread.join(timeout=10)
    assert len(ended) == 1 and not _is_alive(started)
    with pytest.raises(Interrupted):
        workers.run(small_cell())
