"""One of two processes is killed, or stopped, in the middle of a step: the run ends with a reason."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.distributed.endless import TIMEOUT_S
from tests.helpers.distributed.launch import ENVIRONMENT, ROOT, torchrun

PATIENCE_S = 200
"""For what takes seconds on an idle machine."""


def until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for something that happens when it happens."""
    end_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end_s, f"{what} did not happen in {patience_s} s"
        time.sleep(0.05)


def training(directory: Path) -> dict[int, int]:
    """Return the process ids of those that have done some steps, by their numbers."""
    progress = {path: path.read_text().split() for path in directory.iterdir() if path.name.isdecimal()}
    return {int(rank): int(path.name) for path, (rank, done) in progress.items() if int(done) > 2}


def is_alive(process: int) -> bool:
    """Return whether a process runs or is stopped; False for one that has ended and was not yet reaped."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def ended() -> Iterator[list[subprocess.Popen[str]]]:
    """Launchers whose sessions are ended after a test in any case."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        with process:  # closes its pipes
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_killing_one_ends_torchrun_with_an_error_and_leaves_no_process(
    tmp_path: Path, ended: list[subprocess.Popen[str]]
) -> None:
    launcher = torchrun("tests.helpers.distributed.endless", str(tmp_path), "exchange")
    ended.append(launcher)
    until(lambda: len(training(tmp_path)) == 2, "training of two processes")
    processes = training(tmp_path)
    os.kill(processes[1], signal.SIGKILL)
    _, errors = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode not in (0, None)
    assert "Signal 9 (SIGKILL)" in errors and f"{processes[1]}" in errors
    until(lambda: not any(map(is_alive, processes.values())), "the end of all processes")


def alone(rank: int, port: int, directory: Path, module: str) -> subprocess.Popen[str]:
    """Start one of two processes as torchrun would, without a supervisor."""
    variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.distributed.endless", str(directory), module],
        cwd=ROOT,
        env=ENVIRONMENT | variables | meeting,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "how", "module"),
    [
        (1, signal.SIGKILL, "fully_shard"),
        pytest.param(1, signal.SIGKILL, "exchange", marks=pytest.mark.exhaustive),
        pytest.param(0, signal.SIGKILL, "exchange", marks=pytest.mark.exhaustive),
        pytest.param(0, signal.SIGKILL, "fully_shard", marks=pytest.mark.exhaustive),
        # these wait for the timeout
        pytest.param(1, signal.SIGSTOP, "exchange", marks=pytest.mark.exhaustive),
        pytest.param(1, signal.SIGSTOP, "fully_shard", marks=pytest.mark.exhaustive),
    ],
)
def test_the_other_process_ends_by_itself_with_a_reason(
    tmp_path: Path, ended: list[subprocess.Popen[str]], lost: int, how: signal.Signals, module: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [alone(rank, port, tmp_path, module) for rank in range(2)]
    ended.extend(both)
    until(lambda: len(training(tmp_path)) == 2, "training of two processes")
    os.kill(both[lost].pid, how)
    lost_s = time.monotonic()
    _, errors = both[1 - lost].communicate(timeout=PATIENCE_S)
    assert both[1 - lost].returncode == 1
    assert f"process {1 - lost} of 2 could not exchange" in errors
    assert "Traceback" not in errors
    assert time.monotonic() - lost_s < TIMEOUT_S + 30  # an idle machine needs one or two
