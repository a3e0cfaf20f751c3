"""The CPU backend: a schedule runs for real, including its copies.

    offload(block):   compute thread: put the job into the copy thread's queue
                      copy thread:    host buffer <- block                        then set the event
    wait(compute):    compute thread: block until the event is set
    free(block):      compute thread: drop the storage; torch's allocator takes the memory back at once
    prefetch(block):  compute thread: allocate the block's memory, queue the job
                      copy thread:    block <- host buffer                        then set the event
    compute(task of the host): as offload, on a separate thread: torch's optimizer updates weights in host memory
    compute(collective): as offload, on a separate thread: Gloo fills blocks that have their memory from the issue on
    all_reduce(block): as offload, on a separate thread: Gloo averages the block in place, through host memory

Tasks of the compute stream run on the calling thread; every other stream is a worker thread. "Device" memory is the
memory that torch's CPU allocator holds. Host buffers are pages that the allocator does not count. A host-resident
block comes straight from the caller's tensor, which then counts as host memory.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from membench.backends.pages import pages
from membench.backends.tensor_backend import POISON, TensorBackend
from membench.backends.tensors import DeviceTensors
from membench.backends.workers import Job, Workers
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.schedule import COMPUTE_STREAM, EXCHANGE_STREAM, Compute, Free
from membench.core.graph.task_graph import Task, TaskGraph
from membench.core.graph.timeline import Span, Timeline
from membench.planning.host_memory.host_places import PAGE_BYTES

_PART_BYTES = 4 * 2**20
"""Blocks are copied in parts: larger than most of the last cache, the C library writes past it, at half the speed."""


@dataclass(frozen=True)
class Chaos:
    """A switch for tests that provokes the races that a wrong schedule allows.

    Every job of a worker thread starts after a random delay, and memory is filled with NaN before it is freed, so that
    a late reader computes a visibly wrong result.
    """

    seed: int
    longest_delay_s: float = 0.002


_DONE = Job(COMPUTE_STREAM, None)
"""The event of work on the calling thread that is not timed."""


class CpuBackend(TensorBackend):
    """Runs the tasks of one graph on the CPU.

    Args:
        graph: captured with calls.
        groups: process groups by axis, of the collectives.
        chaos: provoke races; for tests.
    """

    def __init__(
        self, graph: TaskGraph, *, groups: Mapping[str, Any] = MappingProxyType({}), chaos: Chaos | None = None
    ) -> None:
        super().__init__(graph, torch.device("cpu"), groups)
        self._chaos = random.Random(chaos.seed) if chaos else None
        self.poison = partial(_poison, self.tensors) if chaos else None
        self._longest_delay_s = chaos.longest_delay_s if chaos else 0.0
        self._workers = Workers()
        self._timed = False
        self._jobs: list[Job] = []  # of the step; those of the compute stream only if it is timed
        self._synchronized = 0  # number of leading jobs that the host has waited for
        self._start_s = self._step_time_s = 0.0

    # ---- instructions -------------------------------------------------------------------------------

    def begin(self, *, timed: bool) -> None:
        self._timed = timed
        self._jobs.clear()
        self._workers.begin_step()
        self._begin_buffers()
        self._synchronized = 0
        self._start_s = time.perf_counter()

    def compute(self, task: Task, stream: str) -> Job:
        if task.on_host:
            return self._on_thread(self._on_host(task), stream)
        if stream != COMPUTE_STREAM:
            return self._submit(self.tensors.prepare(task), stream)
        return self._do(partial(self.tensors.run, task))

    def run_of(self, instructions: Sequence[Compute | Free]) -> Callable[[], Job]:
        return partial(self._do, self._run_of(instructions))

    def offload(self, block: int, stream: str) -> Job:
        return self._submit(self._reading(block, partial(copy_bytes, self._host_buffer(block))), stream)

    def prefetch(self, block: int, stream: str) -> Job:
        self._allocate(block)
        target, source = self.tensors.as_bytes(block), self._host_buffer(block)
        if self.poison:
            self.poison(block)
        return self._submit(partial(copy_bytes, target, source), stream)

    def all_reduce(self, block: int, root: int | None, stream: str) -> Job:
        return self._submit(partial(self._average_over_processes, block, root), stream)

    def encode(self, block: int, encoded: int, codec: ActivationCodec, stream: str) -> Job:
        work = self._encoding(block, encoded, codec)
        return self._do(work) if stream == COMPUTE_STREAM else self._submit(work, stream)

    def decode(self, block: int, encoded: int, codec: ActivationCodec, stream: str) -> Job:
        work = self._decoding(block, encoded, codec)
        if self.poison:
            self.poison(block)
        return self._do(work) if stream == COMPUTE_STREAM else self._submit(work, stream)

    def wait(self, stream: str, event: Job) -> None:
        if stream == COMPUTE_STREAM:
            event.wait()
        elif not event.is_done:
            self._workers.submit(event.wait, stream)

    def synchronize(self) -> None:
        for job in self._jobs[self._synchronized :]:
            if job.stream != EXCHANGE_STREAM:
                job.wait()
        self._synchronized = len(self._jobs)

    def end(self) -> None:
        for job in self._jobs:
            job.wait()
        self._step_time_s = time.perf_counter() - self._start_s

    def _finish_copies(self) -> None:
        for job in self._jobs:
            if job.stream != EXCHANGE_STREAM:
                job.finish()

    def timeline(self, issued: tuple[int, ...]) -> Timeline:
        start_s = self._start_s
        spans = (
            Span(index, job.stream, job.start_s - start_s, job.end_s - start_s)
            for index, job in zip(issued, self._jobs, strict=True)
        )
        return Timeline(tuple(spans), self._step_time_s)

    def close(self) -> None:
        """End the worker threads."""
        self._workers.close()
        self.restore()

    # ---- streams and host memory --------------------------------------------------------------------

    def _do(self, work: Callable[[], object]) -> Job:
        """Do work of the compute stream now."""
        if not self._timed:
            work()
            return _DONE
        job = Job(COMPUTE_STREAM, None)
        self._jobs.append(job)
        job.start_s = time.perf_counter()
        work()
        job.end_s = time.perf_counter()
        return job

    def _submit(self, work: Callable[[], object], stream: str, *, counts_memory: bool = True) -> Job:
        if self._chaos:
            work = _delayed(work, self._chaos.uniform(0, self._longest_delay_s))
        job = self._workers.submit(work, stream, self.recorder if counts_memory else None)
        self._jobs.append(job)
        return job

    def _on_thread(self, work: Callable[[], None], stream: str) -> Job:
        return self._submit(work, stream, counts_memory=False)

    def place(self, block: int, tensor: Tensor) -> Tensor:
        return tensor

    def _bind_host_memory(self, block: int, memory: Tensor) -> None:
        self._host[block] = memory

    def _unbind_host_memory(self, block: int) -> None:
        self._host.pop(block, None)

    def _allocate_host_memory(self, size_bytes: int) -> Tensor:
        if size_bytes < PAGE_BYTES:  # it does not go to a disk
            return torch.from_numpy(np.empty(size_bytes, dtype=np.uint8))
        return pages(size_bytes)[:size_bytes]


def _poison(tensors: DeviceTensors, block: int) -> None:
    """Fill a block. Not a method: a backend that references itself would keep memory until a collection."""
    tensors.as_bytes(block).fill_(POISON)


def copy_bytes(target: Tensor, source: Tensor) -> None:
    """Copy a tensor of bytes on the calling thread only, so as not to compete with the kernels for cores."""
    to, read = target.numpy(), source.numpy()
    for start in range(0, len(to), _PART_BYTES):
        part = slice(start, start + _PART_BYTES)
        np.copyto(to[part], read[part])


def _delayed(work: Callable[[], object], delay_s: float) -> Callable[[], object]:
    def run() -> None:
        time.sleep(delay_s)
        work()

    return run
