"""Strategies that fail in each way in which a cell can fail; child processes import them by name."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from membench.core.files import write_whole
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.strategies.eager import Eager


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
        write_whole(Path(self.note), str(started.pid))
        time.sleep(600)
        raise AssertionError


class Held(Eager):
    """Ends when a file is gone; writes its process number into another one, if it has a name."""

    def __init__(self, hold: str = "hold", note: str = "") -> None:
        self.hold, self.note = hold, note

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        if self.note:
            write_whole(Path(self.note), str(os.getpid()))
        while Path(self.hold).exists():
            time.sleep(0.05)
        return super().schedule(graph, cost, budget_bytes)
