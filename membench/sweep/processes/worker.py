"""Child processes that run cells, so that a cell that dies still has a record.

    parent                                     child (`worker_main`), leader of a process group of its own
                                           <-  a newline to its stdout when it has imported what it needs
    cell.json, then a newline to its stdin ->  runs the cell
    reads record.json                      <-  record.json by atomic replacement, then a newline to its stdout

A child that exits, dies or exceeds the time limit is stopped with all that it started, which its cell's record states;
the next cell gets another child. The end of the parent is the end of the child's stdin, at which the child stops too.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from membench.core.files import write_whole
from membench.core.record import Configuration, Outcome, Record, is_simulated
from membench.profiling.nvml import visible_gpus
from membench.sweep.processes.gpu_lock import free_gpu
from membench.sweep.processes.worker_main import CELL, RECORD

STDERR_TAIL_LINES = 20
_POLL_S = 0.5
"""Interval of checks whether a child is alive: a process that it forked can hold the pipe open after its death."""


class Interrupted(Exception):
    """Stop of a cell because the sweep ends; it has no record."""


class Workers:
    """Runs simulated cells in one warm child for each thread, and every measured cell in a fresh child.

    A cell on a GPU has that GPU for itself: cells of other threads and processes of this machine wait, or take another
    GPU. Meanwhile the next cell's child imports what it needs, without the GPU.

    Args:
        time_limit_s: time limit of one cell; None for no limit.
    """

    def __init__(self, time_limit_s: float | None = None) -> None:
        self._time_limit_s = time_limit_s
        self._of_thread = threading.local()
        self._workers: set[Worker] = set()
        self._next: dict[frozenset[tuple[str, str]], Worker] = {}  # by their variables
        self._closed = False

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, configuration: Configuration) -> Record:
        """Run a cell and return its record.

        Raises:
            Interrupted: `close` was called before it was done.
        """
        if is_simulated(configuration):
            return self._warm().run(configuration, self._time_limit_s)
        from membench.sweep.cells.measured import environment  # imports torch

        with ExitStack() as held:
            variables = environment(configuration)
            if is_on_gpu := configuration["backend"]["name"] == "cuda":
                variables |= held.enter_context(free_gpu(visible_gpus()))
            fresh = self._next.pop(frozenset(variables.items()), None) or self._new(variables)
            if is_on_gpu:
                self._prepare_next(variables)
            try:
                return fresh.run(configuration, self._time_limit_s)
            finally:
                fresh.close()
                self._workers.discard(fresh)

    def close(self) -> None:
        """Stop every child; threads that wait for one are interrupted."""
        self._closed = True
        for worker in list(self._workers):
            worker.close()

    def _prepare_next(self, variables: Mapping[str, str]) -> None:
        following = self._next[frozenset(variables.items())] = self._new(variables)
        following.start()

    def _warm(self) -> "Worker":
        if not hasattr(self._of_thread, "worker"):
            # One thread each: a simulated cell computes only shapes, and the other workers have cells too.
            self._of_thread.worker = self._new({"OMP_NUM_THREADS": "1"})
        return self._of_thread.worker

    def _new(self, environment: Mapping[str, str]) -> "Worker":
        worker = Worker(environment)
        self._workers.add(worker)
        if self._closed:
            worker.close()
        return worker


class Worker:
    """One child at a time, started for the first cell and again after a death.

    Args:
        environment: variables of the child in addition to those of this process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._scratch = TemporaryDirectory(prefix="membench-")
        self._directory = Path(self._scratch.name)
        self._child: subprocess.Popen[bytes] | None = None
        self._is_new = False  # has not yet said that it has imported what it needs
        self._closed = False
        self._starting = threading.Lock()
        self._running = threading.Lock()

    def start(self) -> None:
        """Start the child, which imports what it needs; `run` waits for that."""
        with self._starting, suppress(Interrupted):
            self._start()

    def run(self, configuration: Configuration, time_limit_s: float | None = None) -> Record:
        """Run a cell; see `Workers.run`."""
        with self._running:
            with self._starting:
                child = self._start()
            if self._is_new:
                _answers(child, time_limit_s=None)
                self._is_new = False
            stderr_start = self._stderr.stat().st_size
            write_whole(self._directory / CELL, json.dumps(configuration))
            assert child.stdin
            with suppress(BrokenPipeError):  # the child has ended, which `_answers` notices
                child.stdin.write(b"\n")
            is_in_time = _answers(child, time_limit_s)
            if self._closed:
                raise Interrupted
            made = self._directory / RECORD
            if made.exists():
                record = Record.from_json(made.read_text())
                made.unlink()
            else:
                _stop(child, grace_s=_POLL_S if is_in_time else 0)
                record = _of_death(configuration, child.returncode, None if is_in_time else time_limit_s)
            if not record.outcome.is_failure:
                return record
            return replace(record, stderr_tail=_tail(self._stderr, stderr_start))

    def close(self) -> None:
        """Stop the child; safe to call twice, and from another thread than `run`'s."""
        with self._starting:
            self._closed = True
        if self._child is not None:
            _stop(self._child)
        with self._running:
            if self._child is not None:
                _close_pipes(self._child)
            self._scratch.cleanup()

    @property
    def _stderr(self) -> Path:
        return self._directory / "stderr.txt"

    def _start(self) -> subprocess.Popen[bytes]:
        """Return the child, started unless it runs."""
        if self._closed:
            raise Interrupted
        if self._child is not None:
            if self._child.poll() is None:
                return self._child
            _close_pipes(self._child)
        # The child finds the modules that this process finds, wherever either was started.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with self._stderr.open("ab") as stderr:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "membench.sweep.processes.worker_main", str(self._directory)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": path, **self._environment},
                start_new_session=True,
            )
        self._is_new = True
        return self._child


def _answers(child: subprocess.Popen[bytes], time_limit_s: float | None) -> bool:
    """Wait until a child answers or ends; return whether that was within the limit."""
    assert child.stdout
    deadline_s = float("inf") if time_limit_s is None else time.monotonic() + time_limit_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        answered, _, _ = select.select([child.stdout], [], [], min(left_s, _POLL_S))
        if answered:
            os.read(child.stdout.fileno(), 1)
            return True
        if child.poll() is not None:
            return True
    return False


def _stop(child: subprocess.Popen[bytes], *, grace_s: float = 0.0) -> None:
    """Kill a child and everything that it started; one that is just ending has `grace_s` to exit with its own code."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(grace_s)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    """Close this end of the pipes of a child that has ended."""
    assert child.stdin and child.stdout
    child.stdin.close()
    child.stdout.close()


def _of_death(configuration: Configuration, exit_code: int, exceeded_s: float | None) -> Record:
    """Return the record of a cell whose process ended without one."""
    if exceeded_s is not None:
        reason = f"not done after {exceeded_s:g} s, and stopped; time_limit_s sets the limit"
        return Record.of_failure(configuration, Outcome.TIMEOUT, reason, signal=signal.SIGKILL.name)
    if exit_code >= 0:
        reason = f"its process exited with code {exit_code} before it had a result"
        return Record.of_failure(configuration, Outcome.FAILED, reason)
    name = signal.Signals(-exit_code).name
    hint = "; the system does this when the machine's memory is used up" if name == "SIGKILL" else ""
    reason = f"its process was killed by {name}{hint}"
    return Record.of_failure(configuration, Outcome.FAILED, reason, signal=name)


def _tail(path: Path, start: int) -> str:
    with path.open("rb") as file:
        file.seek(start)
        lines = deque(file, maxlen=STDERR_TAIL_LINES)
    return b"".join(lines).decode(errors="replace")
