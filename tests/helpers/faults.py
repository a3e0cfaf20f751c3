"""Strategies that fail in each way in which a cell can fail; child processes import them by name."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from membench.core.cost_model import CostModel
from membench.core.schedule import Schedule
from membench.core.task_graph import TaskGraph
from membench.strategies.eager import Eager

HOLD = Path("hold")
"""While this file is there, `Held` waits."""


class Raises(Eager):
    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        raise RuntimeError("no such luck")


class UsesUpMemory(Eager):
    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        raise MemoryError


class Exits(Eager):
    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        sys.exit(3)


class IsKilled(Eager):
    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Hangs(Eager):
    """Starts a process and never ends, nor does that process; writes its process number into a file."""

    def __init__(self, note: str = "started") -> None:
        self.note = note

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        started = subprocess.Popen(["sleep", "600"])
        Path(self.note).write_text(str(started.pid))
        time.sleep(600)
        raise AssertionError


class Held(Eager):
    """Ends when it is let go."""

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        while HOLD.exists():
            time.sleep(0.05)
        return super().schedule(graph, cost, budget_bytes)
