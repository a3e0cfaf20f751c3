"""Plans of methods, made in processes of their own; only the calling process captures, each number of samples once.

A user's module need not be importable, nor its weights be copied: processes receive graphs. One that needs the graph of
another number of samples states it, and runs again with that graph.
"""

import os
from collections.abc import Callable, Mapping
from threading import Lock
from types import TracebackType
from typing import TypeVar

from joblib.externals.loky import ProcessPoolExecutor

from membench.capture.capture import Captures
from membench.core.task_graph import TaskGraph
from membench.planning.micro_batch import GraphAt

Result = TypeVar("Result")


class MissingGraph(Exception):
    """A job asks for the graph of a number of samples that it was not given; not an error of the user's."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Planners:
    """Processes that run jobs on the graphs of one step at several batch sizes. Threads may share it.

    Args:
        capture: returns the captures of the step on a number of samples.
        processes: how many; None: one for each processor that this process may use.
    """

    def __init__(self, capture: Callable[[int], Captures], processes: int | None = None) -> None:
        self._capture = capture
        self._captures: dict[int, Captures] = {}
        self._lock = Lock()
        count = processes or len(os.sched_getaffinity(0))
        # joblib's processes do not run the user's program again, as those of the standard library do
        self._pool = ProcessPoolExecutor(count, initializer=_use_one_thread)

    def __enter__(self) -> "Planners":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(kill_workers=True)  # what they were asked for has come, or is not wanted

    def run(self, job: Callable[[GraphAt], Result], batch_size: int) -> Result:
        """Return what a job returns, which runs in a process and asks for graphs of the batch and of micro-batches.

        Raises:
            UnsupportedModel: see `Captures.at`.
        """
        graphs = {batch_size: self.graph(batch_size, batch_size)}
        while True:
            try:
                return self._pool.submit(_run, job, graphs).result()
            except MissingGraph as missing:
                graphs[missing.size] = self.graph(batch_size, missing.size)

    def graph(self, batch_size: int, size: int) -> TaskGraph:
        """Return the graph of a number of samples of a batch; each is captured once."""
        with self._lock:
            if batch_size not in self._captures:
                self._captures[batch_size] = self._capture(batch_size)
            return self._captures[batch_size].graph_at(size)


def _run(job: Callable[[GraphAt], Result], graphs: Mapping[int, TaskGraph]) -> Result:
    def graph_at(size: int) -> TaskGraph:
        if size not in graphs:
            raise MissingGraph(size)
        return graphs[size]

    return job(graph_at)


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)
