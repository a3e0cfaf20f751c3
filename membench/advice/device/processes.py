"""Plans of methods, made in processes of their own; only the calling process captures, each number of samples once.

A user's module need not be importable, nor its weights be copied: processes receive graphs. One that needs the graph of
another number of samples states it, and runs again with that graph. What is urgent is planned first.
"""

import pickle
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from math import inf
from threading import RLock
from time import process_time, thread_time
from typing import Any, TypeVar

from membench.advice.device.changes import AS_IT_IS, Changes
from membench.advice.device.resized import ResizedGraph
from membench.advice.pool.workers import TooSlow, Urgency, Workers
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import TaskGraph
from membench.planning.rewrites.micro_batch import GraphAt
from membench.steps.predicted.fused_graphs import StepGraphs

Result = TypeVar("Result")


LEAST_S = 0.3
"""With less processor time left a job is not begun: reading the graph takes as long."""


CAPTURES = 5
"""Other batches are captured in a search for the largest one, which takes about as many.

With less time left it is not begun.
"""


class MissingGraph(Exception):
    """A job asks for the graph of a number of samples that it was not given; not an error of the user's."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Planners:
    """Processes that run jobs on the graphs of one step, and of changed ones, at several batch sizes.

    Threads may share it.

    Args:
        graphs_of: returns the graphs of a program on a number of samples and less.
        processes: how many; None: one for each processor that this process may use.
    """

    def __init__(self, graphs_of: Callable[[int, Changes], StepGraphs], processes: int | None = None) -> None:
        self._graphs_of = graphs_of
        self._graphs: dict[tuple[Changes, int], StepGraphs] = {}
        self._pickled: dict[tuple[Changes, int, int], bytes] = {}
        self._resized: bytes | None = None
        self.capturing = RLock()
        """Held during a capture: all threads share the state of torch."""
        self._taken_s, self._limit_s = -process_time(), inf
        self._capture_s = 0.0
        self._workers = Workers(processes)

    def __enter__(self) -> "Planners":
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.end()

    def start(self) -> None:
        """Start the processes, which import while this process captures; without them it runs the jobs."""
        if not self._workers.have_started:
            self._workers.start()

    def resize(self, resized: ResizedGraph) -> None:
        """Let jobs on other batches take their graphs from there, so that they are not captured."""
        self._resized = pickle.dumps(resized)

    def limit(self, limit_s: float) -> None:
        """Limit the processor time of all processes, this one included, to so many seconds for each of those that plan.

        Where it is taken, jobs end with `TooSlow`, except those without a limit, whose time is not counted.
        """
        self._limit_s = limit_s * self._workers.number

    def run(
        self,
        job: Callable[[GraphAt], Result],
        batch_size: int,
        urgency: Urgency = Urgency.METHOD,
        program: Changes = AS_IT_IS,
    ) -> Result:
        """Return what a job returns, which asks for graphs of the batch and of micro-batches.

        It runs in a process where they have started.

        Raises:
            UnsupportedModel: see `Captures.at`.
            TooSlow: the job took too long, or its turn came too late.
            MembenchError: a process ended before its job was done.
        """
        if not self._workers.have_started:
            return job(lambda size: self.graph(batch_size, size, program))
        is_captured = program != AS_IT_IS or (program, batch_size) in self._graphs
        resized = None if is_captured else self._resized
        if urgency.is_limited and not is_captured and not resized and self._share_s() < CAPTURES * self._capture_s:
            raise TooSlow
        graphs = {} if resized else {batch_size: self._graph_pickled(batch_size, batch_size, program)}
        while True:
            try:
                return self._result(partial(_run, job, batch_size, graphs, resized), urgency)
            except MissingGraph as missing:
                graphs[missing.size] = self._graph_pickled(batch_size, missing.size, program)

    def _result(self, call: Callable[[], Result], urgency: Urgency) -> Result:
        with self._workers.one(urgency) as worker:
            limit_s = self._share_s() if urgency.is_limited else inf
            if limit_s < LEAST_S:
                raise TooSlow
            try:
                done = worker.call(call, limit_s)
            except TooSlow:
                self._taken_s += limit_s
                raise
        self._taken_s += done.processor_s if urgency.is_limited else 0.0
        if isinstance(done.result, MembenchError):
            raise done.result
        return done.result

    def _share_s(self) -> float:
        """Return the processor time that is left for each process."""
        return (self._limit_s - self._taken_s - process_time()) / self._workers.number

    def share(self, batch_size: int) -> TaskGraph:
        """Return the graph of a batch, ready for jobs, which then do not wait for captures of other programs."""
        self._graph_pickled(batch_size, batch_size, AS_IT_IS)
        return self.graph(batch_size, batch_size)

    def graph(self, batch_size: int, size: int, program: Changes = AS_IT_IS) -> TaskGraph:
        """Return the graph of a number of samples of a batch; each is captured once."""
        with self.capturing:
            key = program, batch_size
            if key not in self._graphs:
                self._graphs[key] = self._graphs_of(batch_size, program)
            start_s = thread_time()
            graph = self._graphs[key].graph_at(size)
            self._capture_s = max(self._capture_s, thread_time() - start_s)
            return graph

    def _graph_pickled(self, batch_size: int, size: int, program: Changes) -> bytes:
        key = program, batch_size, size
        if key not in self._pickled:
            with self.capturing:
                if key not in self._pickled:
                    self._pickled[key] = pickle.dumps(self.graph(batch_size, size, program))
        return self._pickled[key]


def _run(
    job: Callable[[GraphAt], Result], batch_size: int, graphs: Mapping[int, bytes], resized: bytes | None
) -> Result:
    def graph_at(size: int) -> TaskGraph:
        if size in graphs:
            return _read(graphs[size])
        if resized and size == batch_size:
            return _read(resized).at(size)
        raise MissingGraph(size)

    return job(graph_at)


@lru_cache(maxsize=4)
def _read(pickled: bytes) -> Any:
    """Return a graph, which many jobs get."""
    return pickle.loads(pickled)
