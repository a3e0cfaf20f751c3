"""Processes that run calls, the most urgent first, each of which is ended where it takes too much processor time."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from importlib import import_module
from itertools import count
from math import inf
from signal import ITIMER_PROF, ITIMER_VIRTUAL, SIGPROF, SIGVTALRM, setitimer, signal
from threading import Condition
from time import process_time
from typing import Generic, NoReturn, TypeVar

from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor, process_executor

from membench.core.errors import MembenchError
from membench.core.libraries.messages import silence_libraries

Result = TypeVar("Result")


GRACE_S = 1.0
"""Processor time after which the process of a call is ended that could not be: compiled code runs to its end."""


class TooSlow(BaseException):
    """A call has used the processor time left for it, or none is left; no handler of errors ends it."""


class Urgency(IntEnum):
    """The order in which calls that wait for a process get one."""

    MOVES_WEIGHTS = 0  # a method that may fit where others do not
    LEVER = 1
    METHOD = 2
    LARGEST_BATCH = 3

    @property
    def is_limited(self) -> bool:
        """Whether calls are left out where they take too long: what is more urgent is a part of every answer."""
        return self >= Urgency.METHOD


@dataclass(frozen=True)
class Done(Generic[Result]):
    """The result of a call, or why the user has none, and the processor time that it took."""

    result: Result | MembenchError
    processor_s: float


def available() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


class Worker:
    """A process that runs one call after another. It starts at once, and again after it was ended."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = self._started()

    def _started(self) -> ProcessPoolExecutor:
        # joblib's processes do not run the user's program again, as those of the standard library do
        pool = ProcessPoolExecutor(1, initializer=_begin)
        pool.submit(_begin)
        return pool

    def call(self, function: Callable[[], Result], limit_s: float) -> Done[Result]:
        """Return what a function returns, or the `MembenchError` that it raises.

        Args:
            limit_s: processor time that it may take.

        Raises:
            TooSlow: it took longer. Where it does not end within `GRACE_S`, its process is ended.
            MembenchError: the process ended from outside.
        """
        self._pool = self._pool or self._started()
        try:
            return self._pool.submit(_call, function, limit_s).result()
        except BrokenProcessPool as error:
            self.end()
            if limit_s < inf and SIGVTALRM.name in str(error):  # it states the signal
                raise TooSlow from None
            raise MembenchError(
                "a process that planned was ended from outside, as where the machine's memory is used up; "
                "plan in fewer processes, or fewer methods"
            ) from None

    def end(self) -> None:
        """End the process; what it was asked for has come, or is not wanted."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(kill_workers=True)


class Workers:
    """A number of workers, which the most urgent callers get first, and of those the first that came."""

    def __init__(self, number: int | None = None) -> None:
        """Have processes, one for each processor that this process may use if no number is given."""
        self.number = number or available()
        self._all: list[Worker] = []
        self._free: list[Worker] = []
        self._changed = Condition()
        self._waiting: list[tuple[Urgency, int]] = []
        self._numbers = count()

    def start(self) -> None:
        """Start the processes."""
        self._all = [Worker() for _ in range(self.number)]
        self._free = list(self._all)

    @property
    def have_started(self) -> bool:
        return bool(self._all)

    @contextmanager
    def one(self, urgency: Urgency) -> Iterator[Worker]:
        """Wait for a worker, and give it back."""
        with self._changed:
            turn = urgency, next(self._numbers)
            heappush(self._waiting, turn)
            self._changed.wait_for(lambda: self._free and self._waiting[0] == turn)
            heappop(self._waiting)
            worker = self._free.pop()
            self._changed.notify_all()
        try:
            yield worker
        finally:
            with self._changed:
                self._free.append(worker)
                self._changed.notify_all()

    def end(self) -> None:
        """End all processes."""
        for worker in self._all:
            worker.end()


def _call(function: Callable[[], Result], limit_s: float) -> Done[Result]:
    start_s = process_time()
    signal(SIGPROF, _stop)
    _limit(limit_s)
    try:
        return Done(function(), process_time() - start_s)
    except MembenchError as error:
        return Done(error, process_time() - start_s)
    finally:
        _limit(inf)


def _limit(limit_s: float) -> None:
    """Have one signal stop the call, and another one end its process, which compiled code does not delay."""
    setitimer(ITIMER_PROF, 0 if limit_s == inf else limit_s)
    setitimer(ITIMER_VIRTUAL, 0 if limit_s == inf else limit_s + GRACE_S)


def _stop(*_: object) -> NoReturn:
    raise TooSlow


def _begin() -> None:
    """Import what calls need, and keep the process when its memory grows by large graphs and plans."""
    silence_libraries()
    import_module("membench.advice.device.planning")
    import_module("torch").set_num_threads(1)
    process_executor._USE_PSUTIL = False
