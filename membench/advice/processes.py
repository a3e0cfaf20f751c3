"""Plans of methods, made in processes of their own; only the calling process captures, each number of samples once.

A user's module need not be importable, nor its weights be copied: processes receive graphs. One that needs the graph of
another number of samples states it, and runs again with that graph. What is urgent is planned first.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from heapq import heappop, heappush
from importlib import import_module
from itertools import count
from math import inf
from signal import ITIMER_PROF, SIGPROF, setitimer, signal
from threading import Condition, RLock
from time import process_time
from types import TracebackType
from typing import Any, Generic, TypeVar

from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor, process_executor

from membench.advice.changes import AS_IT_IS, Changes
from membench.advice.resized import ResizedGraph
from membench.capture.capture import Captures
from membench.core.errors import MembenchError
from membench.core.task_graph import TaskGraph
from membench.planning.micro_batch import GraphAt

Result = TypeVar("Result")


class MissingGraph(Exception):
    """A job asks for the graph of a number of samples that it was not given; not an error of the user's."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class TooSlow(Exception):
    """A job has taken the processor time that was left for it, or there is none left; not an error of the user's."""


class Urgency(IntEnum):
    """The order in which jobs that wait for a process get one."""

    LEVER = 0
    MOVES_WEIGHTS = 1  # a method that may fit where others do not, and plans for longer
    METHOD = 2
    LARGEST_BATCH = 3


class Planners:
    """Processes that run jobs on the graphs of one step, and of changed ones, at several batch sizes. Threads may share it.

    Args:
        capture: returns the captures of a program on a number of samples.
        processes: how many; None: one for each processor that this process may use.
    """

    def __init__(self, capture: Callable[[int, Changes], Captures], processes: int | None = None) -> None:
        self._capture = capture
        self._captures: dict[tuple[Changes, int], Captures] = {}
        self._pickled: dict[tuple[Changes, int, int], bytes] = {}
        self._resized: bytes | None = None
        self.capturing = RLock()
        """Held by whoever captures: torch's state is shared by all threads."""
        self._taken_s, self._limit_s = -process_time(), inf
        self._number = number = processes or len(os.sched_getaffinity(0))
        self._turns = _Turns(number)
        # joblib's processes do not run the user's program again, as those of the standard library do
        self._pool = ProcessPoolExecutor(number, initializer=_begin)
        self._pool.submit(_begin)  # they start, and import, while this process captures

    def __enter__(self) -> "Planners":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(kill_workers=True)  # what they were asked for has come, or is not wanted

    def resize(self, resized: ResizedGraph) -> None:
        """Let jobs on other batches take their graphs from there, so that they are not captured."""
        self._resized = pickle.dumps(resized)

    def limit(self, limit_s: float) -> None:
        """Limit the processor time of all processes, this one included, to so many seconds for each of those that plan.

        Where it is taken, jobs end with `TooSlow`, except the most urgent ones.
        """
        self._limit_s = limit_s * self._number

    def run(
        self,
        job: Callable[[GraphAt], Result],
        batch_size: int,
        urgency: Urgency = Urgency.METHOD,
        program: Changes = AS_IT_IS,
    ) -> Result:
        """Return what a job returns, which runs in a process and asks for graphs of the batch and of micro-batches.

        Raises:
            UnsupportedModel: see `Captures.at`.
            TooSlow: the job took too long, or its turn came too late.
            MembenchError: a process ended before its job was done.
        """
        is_captured = program != AS_IT_IS or (program, batch_size) in self._captures
        resized = None if is_captured else self._resized
        graphs = {} if resized else {batch_size: self._graph_pickled(batch_size, batch_size, program)}
        while True:
            try:
                with self._turns.taken(urgency):
                    limit_s = inf if urgency is Urgency.LEVER else self._left_s() / self._number
                    if limit_s <= 0:
                        raise TooSlow
                    done = self._pool.submit(_run, job, batch_size, graphs, resized, limit_s).result()
                    self._taken_s += done.processor_s
                if isinstance(done.result, MembenchError):
                    raise done.result
                return done.result
            except MissingGraph as missing:
                graphs[missing.size] = self._graph_pickled(batch_size, missing.size, program)
            except BrokenProcessPool:
                raise MembenchError(
                    "a process that planned was ended from outside, as where the machine's memory is used up; "
                    "plan in fewer processes, or fewer methods"
                ) from None

    def _left_s(self) -> float:
        return self._limit_s - self._taken_s - process_time()

    def graph(self, batch_size: int, size: int, program: Changes = AS_IT_IS) -> TaskGraph:
        """Return the graph of a number of samples of a batch; each is captured once."""
        with self.capturing:
            key = program, batch_size
            if key not in self._captures:
                self._captures[key] = self._capture(batch_size, program)
            return self._captures[key].graph_at(size)

    def _graph_pickled(self, batch_size: int, size: int, program: Changes) -> bytes:
        graph = self.graph(batch_size, size, program)
        with self.capturing:
            key = program, batch_size, size
            if key not in self._pickled:
                self._pickled[key] = pickle.dumps(graph)
            return self._pickled[key]


class _Turns:
    """Who may use one of a number of processes next: the most urgent, and of those the first that came."""

    def __init__(self, free: int) -> None:
        self._free, self._changed = free, Condition()
        self._waiting: list[tuple[Urgency, int]] = []
        self._numbers = count()

    @contextmanager
    def taken(self, urgency: Urgency) -> Iterator[None]:
        """Wait for a process, and give it back."""
        with self._changed:
            turn = urgency, next(self._numbers)
            heappush(self._waiting, turn)
            self._changed.wait_for(lambda: self._free and self._waiting[0] == turn)
            heappop(self._waiting)
            self._free -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()


@dataclass(frozen=True)
class _Done(Generic[Result]):
    """The result of a job, or why the user has none, and the processor time that it took."""

    result: Result | MembenchError
    processor_s: float


def _run(
    job: Callable[[GraphAt], Result],
    batch_size: int,
    graphs: Mapping[int, bytes],
    resized: bytes | None,
    limit_s: float,
) -> _Done[Result]:
    def graph_at(size: int) -> TaskGraph:
        if size in graphs:
            return _read(graphs[size])
        if resized and size == batch_size:
            return _read(resized).at(size)
        raise MissingGraph(size)

    start_s = process_time()
    result: Result | MembenchError
    with _limited(limit_s):
        try:
            result = job(graph_at)
        except MembenchError as error:
            result = error
    return _Done(result, process_time() - start_s)


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raise `TooSlow` in the thread that jobs run in, once it has taken that much processor time."""

    def stop(*_: object) -> None:
        raise TooSlow

    signal(SIGPROF, stop)
    setitimer(ITIMER_PROF, 0 if limit_s == inf else limit_s)
    try:
        yield
    finally:
        setitimer(ITIMER_PROF, 0)


@lru_cache(maxsize=4)
def _read(pickled: bytes) -> Any:
    """Return a graph, which many jobs get."""
    return pickle.loads(pickled)


def _begin() -> None:
    """Import what jobs need, and keep the process when its memory grows: graphs and plans are large, and are not a leak."""
    import_module("membench.advice.planning")
    import_module("torch").set_num_threads(1)
    process_executor._USE_PSUTIL = False
