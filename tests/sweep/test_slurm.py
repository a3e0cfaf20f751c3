"""Sweeps on a real Slurm cluster whose jobs are killed, cancelled and requeued; `make test-slurm` runs these tests."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from membench.core.configuration import ROOT
from tests.helpers.sweep.slurm import Cluster, required_cluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
SWEEP = (
    "-m",
    "model=lenet",
    "strategy=eager",
    "strategy._target_=membench.strategies.eager.Eager,tests.helpers.sweep.faults.Held",
    "batch_size=4,5,6",
)
ON_SLURM = ("hydra/launcher=cluster", "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=20")
PATIENCE_S = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with required_cluster() as cluster:
        yield cluster


def _start(directory: Path, environment: Mapping[str, str], *words: str) -> "subprocess.Popen[str]":
    """Start a sweep of six cells; the last three wait while the file `hold` is there."""
    return subprocess.Popen(
        [sys.executable, "-m", "membench", *SWEEP, *words],
        cwd=directory,
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _end(sweep: "subprocess.Popen[str]") -> tuple[int, str, str]:
    said, complained = sweep.communicate(timeout=PATIENCE_S)
    return sweep.returncode, said, complained


def _records(directory: Path) -> dict[str, Any]:
    """Return the records that are kept, by the name of their file."""
    return {
        path.name: json.loads(path.read_text())["record"] for path in directory.glob("outputs/records/simulated/*.json")
    }


def _wait_until(is_so: Callable[[], bool], sweep: "subprocess.Popen[str]") -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert sweep.poll() is None, sweep.communicate()
        assert time.monotonic() < end_s
        time.sleep(0.2)


def _cell_of(job: str) -> int | None:
    """Return the process of a job of an array in which submitit waits for a cell's worker; None before it has one."""
    array, _, number = job.partition("_")
    variables = {f"SLURM_ARRAY_JOB_ID={array}".encode(), f"SLURM_ARRAY_TASK_ID={number}".encode()}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"membench.sweep.processes.worker_main" in words and variables <= {
                *(path / "environ").read_bytes().split(b"\0")
            }:
                return int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended, or is another user's
            continue
    return None


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The records of the sweep without a cluster."""
    directory = tmp_path_factory.mktemp("local")
    code, said, complained = _end(_start(directory, os.environ))
    assert (code, "6 cells: 6 ok\n" in said) == (0, True), complained
    return _records(directory)


def _held_jobs(cluster: Cluster, directory: Path, sweep: "subprocess.Popen[str]") -> list[str]:
    """Return two jobs of a sweep, whose cells are held, when the three others are done."""
    _wait_until(lambda: len(_records(directory)) == 3, sweep)
    _wait_until(lambda: len([job for job in cluster.jobs("running") if _cell_of(job)]) == 2, sweep)
    return sorted(cluster.jobs("running"))


def test_cells_whose_jobs_are_killed_or_cancelled_run_with_the_same_command(
    cluster: Cluster, local: dict[str, Any], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    sweep = _start(tmp_path, cluster.environment, *ON_SLURM)
    killed, cancelled = _held_jobs(cluster, tmp_path, sweep)
    process = _cell_of(killed)
    assert process
    os.kill(process, signal.SIGKILL)
    cluster.ask("scancel", cancelled)
    _wait_until(lambda: not {killed, cancelled} & {*cluster.jobs("running,completing")}, sweep)
    assert len(_records(tmp_path)) == 3
    hold.unlink()
    code, said, complained = _end(sweep)
    assert (code, said) == (2, "")
    assert complained.count("\n") == 1 and f"Job {killed} " in complained
    while cluster.jobs("pending,running,completing"):
        time.sleep(0.2)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("outputs/records/simulated/*.json")}
    assert len(kept) == 4

    code, said, complained = _end(_start(tmp_path, cluster.environment, *ON_SLURM, "strict=true"))
    assert (code, complained) == (0, "")
    assert said == "6 cells: 6 ok\n"
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert _records(tmp_path) == local
    states = [state for job, state in cluster.accounted().items() if job in (killed, cancelled)]
    assert sorted(states) == ["CANCELLED", "FAILED"]


def test_a_sweep_waits_for_a_job_that_is_preempted(cluster: Cluster, local: dict[str, Any], tmp_path: Path) -> None:
    """Slurm's signals of a preemption; submitit then requeues the job."""
    hold = tmp_path / "hold"
    hold.touch()
    sweep = _start(tmp_path, cluster.environment, *ON_SLURM)
    preempted, _ = _held_jobs(cluster, tmp_path, sweep)
    process = _cell_of(preempted)
    for announcement in ("SIGTERM", "SIGUSR2"):
        cluster.ask("scancel", f"--signal={announcement}", preempted)
    _wait_until(lambda: _cell_of(preempted) != process, sweep)
    assert len(_records(tmp_path)) == 3
    hold.unlink()
    _wait_until(lambda: preempted in cluster.jobs("pending"), sweep)
    cluster.ask("scontrol", "update", f"jobid={preempted}", "starttime=now")  # by default in two minutes
    code, said, complained = _end(sweep)
    assert (code, complained) == (0, "")
    assert said == "6 cells: 6 ok\n"
    assert _records(tmp_path) == local
