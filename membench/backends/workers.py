"""Streams that are threads: each serves its work in the order in which it was submitted.

    submit(work): calling thread: put the job into the stream's queue
                  its thread:     run the work                          then set the job's event
    job.wait():   calling thread: block until the event is set; raise what the work has raised

A thread computes with as many threads of its own as the calling thread does: an operator's sums, and with them the last
bits of its results, depend on their number, which a library that asks OpenMP itself does not find in a new thread.

After work that has failed, the rest of its stream's work in that step does not run and has the same error: it would
compute on what was not made.
"""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue
from threading import Event, Thread
from weakref import finalize

import torch

from membench.core.libraries.torch_devices import MemoryRecorder


class Job:
    """One instruction's progress; it must not reference its work, which holds the tensors that it reads."""

    __slots__ = ("end_s", "error", "finished", "recorder", "start_s", "stream")

    def __init__(self, stream: str, finished: Event | None, recorder: MemoryRecorder | None = None) -> None:
        self.stream = stream
        self.finished = finished  # None: it ran on the calling thread, so it is done
        self.recorder = recorder
        self.error: BaseException | None = None
        self.start_s = self.end_s = 0.0

    @property
    def is_done(self) -> bool:
        return self.finished is None or (self.finished.is_set() and self.error is None)

    def wait(self) -> None:
        """Wait until it has ended, and raise its error."""
        self.finish()
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        """Wait until it has ended, whether well or not."""
        if self.finished is not None:
            self.finished.wait()


_Ticket = tuple[Job, Callable[[], object]]
_Queue = SimpleQueue[_Ticket | None]


class Workers:
    """Threads by the name of the stream that each serves; they end when this object is closed or dropped."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], _Queue] = {}  # by stream and process
        finalize(self, _end, self._queues).atexit = False  # a process that ends does not wait for them

    def submit(self, work: Callable[[], object], stream: str, recorder: MemoryRecorder | None = None) -> Job:
        """Put work into a stream's queue.

        Args:
            recorder: records the memory that the work takes.
        """
        job = Job(stream, Event(), recorder)
        self._queue(stream).put((job, work))
        return job

    def begin_step(self) -> None:
        """Let streams run their work again in which work has failed."""
        for queue in self._queues.values():
            queue.put((Job("", Event()), _begin_step))

    def close(self) -> None:
        """End the threads."""
        _end(self._queues)

    def _queue(self, stream: str) -> _Queue:
        key = stream, os.getpid()  # a forked process does not have the threads
        if key not in self._queues:
            queue: _Queue = SimpleQueue()
            self._queues[key] = queue
            threads = torch.get_num_threads()
            # in a forked process torch replaces its own threads at the first call, which two of ours must not make at
            # once (pytorch#178535)
            torch.set_num_threads(threads)
            Thread(target=_serve, args=(queue, threads), name=f"membench {stream}", daemon=True).start()
        return self._queues[key]


def _end(queues: dict[tuple[str, int], _Queue]) -> None:
    while queues:
        queues.popitem()[1].put(None)


def _begin_step() -> None:
    """Do nothing: work that resets its stream."""


def _serve(queue: _Queue, threads: int) -> None:
    torch.set_num_threads(threads)
    failure: BaseException | None = None
    with torch.no_grad():
        while (ticket := queue.get()) is not None:
            job, work = ticket
            if work is _begin_step:
                failure = None
            with job.recorder.record() if job.recorder else nullcontext():
                job.start_s = time.perf_counter()
                try:
                    if failure is not None:
                        raise failure
                    work()
                except BaseException as error:  # raised again where the job is waited for
                    job.error = failure = error
                del ticket, work  # before the event: the waiting thread may free the tensors' memory
                job.end_s = time.perf_counter()
            assert job.finished is not None
            job.finished.set()
