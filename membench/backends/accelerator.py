"""The backend of accelerators: a schedule runs on streams of one GPU, by what torch has for accelerators of any make.

The compute stream is the caller's current stream; every other stream of the schedule is a separate stream. One block is
offloaded and prefetched by these calls:

    begin              start.record(compute)
    compute(task)      the task's kernels, on compute
                       produced.record(compute)                                   [only if it is waited for]
    wait(copy)         copy.wait_event(start)                                     [a stream's first use in a step]
                       copy.wait_event(produced)
    offload(block)     host.copy_(block, non_blocking), on copy
                       offloaded.record(copy)
    wait(compute)      compute.wait_event(offloaded)
    free(block)        drop the storage: the allocator may reuse its memory at once, for work that is queued on
                       compute behind that wait
    prefetch(block)    allocate from compute's pool
                       here.record(compute); copy.wait_event(here)                [earlier uses of that memory end]
                       block.copy_(host, non_blocking), on copy
                       prefetched.record(copy)
    wait(compute)      compute.wait_event(prefetched)

A gradient is averaged over the processes by NCCL on a stream of NCCL's, which follows `exchange` and which `exchange`
follows, without the host. So the average is in order like any other work:

    wait(exchange)     exchange.wait_event(produced)
    all_reduce(block)  all_reduce or reduce and broadcast, on exchange
                       averaged.record(exchange)
    wait(compute)      compute.wait_event(averaged)

So memory is allocated and freed at the compute stream's position, as in the schedule, and `record_stream`, which would
keep memory until the host polls an event, is not needed. Outputs and workspaces of a task on another stream come from
that stream's pool, because torch's allocator has no other way; the task waits for the compute stream's position as a
prefetch does, so the same argument holds for them.

Tasks of the host and the disk run on threads, which wait for the copies that they read, and for which the host waits
where a stream of the GPU has to: that cannot wait for a thread.

Host buffers are page-locked, of exact size, and kept; host-resident weights lie in such memory. Events are made once
and recorded again in every step.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from membench.backends.pinned import PinnedMemory
from membench.backends.tensor_backend import TensorBackend
from membench.backends.workers import Job, Workers
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    EXCHANGE_STREAM,
    HOST_STREAM,
    LOAD_STREAM,
    STORE_STREAM,
    Compute,
    Free,
    Schedule,
    Wait,
    Work,
)
from membench.core.graph.task_graph import ARGUMENT_ROLES, Task
from membench.core.graph.timeline import Span, Timeline

_THREADS = frozenset({HOST_STREAM, LOAD_STREAM, STORE_STREAM})

_Event = torch.Event | Job | None


class _Marks(NamedTuple):
    """Events around one instruction: `start` only to time it, `end` to time it or because it is waited for."""

    start: torch.Event | None
    end: torch.Event | None


class AcceleratorBackend(TensorBackend):
    """Runs one schedule on a GPU.

    Issuing is asynchronous: after `end`, work that the caller puts on the current stream comes after the step. With
    host-resident blocks, `end` waits for their copies.

    Args:
        schedule: its graph captured for the device, with calls.
        device: the GPU.
        groups: process groups by axis, of the collectives; not run on several GPUs yet.

    Attributes:
        is_captured: the step is not run but captured as a CUDA graph, which must end with all streams joined.
    """

    def __init__(
        self, schedule: Schedule, device: torch.device, groups: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        super().__init__(schedule.graph, device, groups)
        self.pinned = PinnedMemory(device)
        self.is_captured = False
        self._own_streams: dict[str, torch.Stream] = {}
        self._streams: dict[str, torch.Stream] = {}  # used in this step
        self._awaited = _awaited(schedule)
        self._untimed = [_Marks(None, torch.Event(device) if awaited else None) for awaited in self._awaited]
        self._timed: list[_Marks] = []
        self._marks = self._untimed
        self._issued: list[str] = []  # stream of each instruction issued so far
        self._workers = Workers()  # the host's stream
        self._jobs: dict[int, Job] = {}  # by number among the issued instructions
        self._start_s = 0.0
        self._starts = {timed: torch.Event(device, enable_timing=timed) for timed in (False, True)}
        self._start = self._starts[False]
        self._end = torch.Event(device, enable_timing=True)
        self._here = torch.Event(device)

    # ---- instructions -------------------------------------------------------------------------------

    def begin(self, *, timed: bool) -> None:
        if timed and not self._timed:
            self._timed = [self._timing_marks() for _ in self._awaited]
        self._marks = self._timed if timed else self._untimed
        self._start = self._starts[timed]
        self._issued.clear()
        self._workers.begin_step()
        self._begin_buffers()
        self._start_s = time.perf_counter()
        self._streams = {COMPUTE_STREAM: torch.accelerator.current_stream(self.device)}
        self._start.record(self._streams[COMPUTE_STREAM])

    def compute(self, task: Task, stream: str) -> _Event:
        if task.on_host:
            return self._on_thread(self._on_host(task), stream)
        return self._write_new(stream, self.tensors.run, task)

    def run_of(self, instructions: Sequence[Compute | Free]) -> Callable[[], _Event]:
        work = self._run_of(instructions)
        others = [COMPUTE_STREAM] * (sum(isinstance(each, Compute) for each in instructions) - 1)

        def issue() -> _Event:
            self._issued += others
            return self._issue(COMPUTE_STREAM, work)

        return issue

    def offload(self, block: int, stream: str) -> _Event:
        return self._copy(self._host_buffer(block), self.tensors.as_bytes(block), stream)

    def prefetch(self, block: int, stream: str) -> _Event:
        self._allocate(block)
        self._follow_compute(stream)
        return self._copy(self.tensors.as_bytes(block), self._host_buffer(block), stream)

    def all_reduce(self, block: int, root: int | None, stream: str) -> _Event:
        return self._issue(stream, self._average_over_processes, block, root)

    def encode(self, block: int, encoded: int, codec: ActivationCodec, stream: str) -> _Event:
        return self._write_new(stream, self._encoding(block, encoded, codec))

    def decode(self, block: int, encoded: int, codec: ActivationCodec, stream: str) -> _Event:
        return self._write_new(stream, self._decoding(block, encoded, codec))

    def wait(self, stream: str, event: torch.Event | Job) -> None:
        if stream in _THREADS:
            self._workers.submit(event.wait if isinstance(event, Job) else event.synchronize, stream)
        elif isinstance(event, Job):
            event.wait()  # a stream of the GPU cannot wait for a thread
        else:
            self._stream(stream).wait_event(event)

    def synchronize(self) -> None:
        if self.is_captured:  # a CUDA graph cannot contain work of the host
            self._join(self._local_streams())
            return
        for stream in self._local_streams():
            stream.synchronize()
        for job in self._jobs.values():
            job.wait()

    def _finish_copies(self) -> None:
        for job in self._jobs.values():
            job.finish()
        self._jobs.clear()
        self.synchronize()

    def end(self) -> None:
        if self.is_captured:
            self._join(self._streams.values())  # a graph must not end with a stream that was not joined
        elif self.has_host_resident_blocks:
            self.synchronize()  # the caller may read and change host-resident blocks at once
        if self._marks is self._timed:
            self._end.record(self._streams[COMPUTE_STREAM])

    def timeline(self, issued: tuple[int, ...]) -> Timeline:
        assert self._marks is self._timed, "the step was begun without timed=True"
        self.synchronize()
        spans = (
            Span(index, stream, *self._times_s(number))
            for number, (index, stream) in enumerate(zip(issued, self._issued, strict=True))
        )
        return Timeline(tuple(spans), self._since_start_s(self._end))

    def _times_s(self, number: int) -> tuple[float, float]:
        """Return when an issued instruction started and ended, in seconds since the step's start."""
        if number in self._jobs:
            job = self._jobs[number]
            return job.start_s - self._start_s, job.end_s - self._start_s
        start, end = self._marks[number]
        return self._since_start_s(start), self._since_start_s(end)

    def close(self) -> None:
        """Wait for pending copies and free the host memory."""
        for stream in self._streams.values():
            stream.synchronize()
        self._workers.close()
        self.restore()
        self._host.clear()
        self.pinned.close()

    # ---- streams and events -------------------------------------------------------------------------

    def _stream(self, name: str) -> torch.Stream:
        """Return a stream; at its first use in a step it waits for the caller's work before the step."""
        if name not in self._streams:
            if name not in self._own_streams:
                self._own_streams[name] = torch.Stream(self.device)
            self._streams[name] = self._own_streams[name]
            self._streams[name].wait_event(self._start)
        return self._streams[name]

    def _issue(self, name: str, work: Callable[..., object], *args: Any) -> _Event:
        stream = self._stream(name)
        start, end = self._marks[len(self._issued)]
        self._issued.append(name)
        if start is not None:
            start.record(stream)
        if name == COMPUTE_STREAM:
            work(*args)
        else:
            # not as a context, which takes several times as long as the call of a copy
            torch.accelerator.set_stream(stream)
            try:
                work(*args)
            finally:
                torch.accelerator.set_stream(self._streams[COMPUTE_STREAM])
        if end is not None:
            end.record(stream)
        return end

    def _on_thread(self, work: Callable[[], None], stream: str) -> Job:
        job = self._jobs[len(self._issued)] = self._workers.submit(work, stream)
        self._issued.append(stream)
        return job

    def _copy(self, target: Tensor, source: Tensor, stream: str) -> _Event:
        return self._issue(stream, target.copy_, source, True)  # True: non_blocking

    def _write_new(self, stream: str, work: Callable[..., object], *args: Any) -> _Event:
        """Issue work that writes to memory that has just been allocated, or that it allocates."""
        if stream != COMPUTE_STREAM:
            self._follow_compute(stream)
        return self._issue(stream, work, *args)

    def _follow_compute(self, stream: str) -> None:
        """Make a stream wait for the compute stream's position, at which memory has just been allocated."""
        self._here.record(self._streams[COMPUTE_STREAM])
        self._stream(stream).wait_event(self._here)

    def _local_streams(self) -> list[torch.Stream]:
        """Return the streams whose work does not depend on other processes."""
        return [stream for name, stream in self._streams.items() if name != EXCHANGE_STREAM]

    def _join(self, streams: Collection[torch.Stream]) -> None:
        """Make each of these streams wait for the others, without the host."""
        for stream in streams:
            self._here.record(stream)
            for other in streams:
                other.wait_event(self._here)

    def _timing_marks(self) -> _Marks:
        return _Marks(*(torch.Event(self.device, enable_timing=True) for _ in range(2)))

    def _since_start_s(self, event: torch.Event | None) -> float:
        assert event is not None
        return self._start.elapsed_time(event) * 1e-3

    def place(self, block: int, tensor: Tensor) -> Tensor:
        """Return the tensor on the GPU or in host memory, which is page-locked except for a step's arguments."""
        if not self.is_host_resident(block):
            return tensor.to(self.device)
        if self._is_argument(block):
            return tensor.cpu()
        memory = self.pinned.take(self._blocks[block].size_bytes).view(tensor.dtype)
        return memory.as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    def _bind_host_memory(self, block: int, memory: Tensor) -> None:
        """Use the caller's memory itself, but a copy of an argument, which the caller may overwrite."""
        if self._is_argument(block):
            torch.accelerator.current_stream(self.device).synchronize()  # the previous step reads the buffer
            self._host_buffer(block).copy_(memory)
        else:
            self._host[block] = memory

    def _unbind_host_memory(self, block: int) -> None:
        """Do nothing: arguments keep their buffer, and other host-resident blocks stay bound."""

    def _is_argument(self, block: int) -> bool:
        return self._blocks[block].role in ARGUMENT_ROLES

    def _allocate_host_memory(self, size_bytes: int) -> Tensor:
        return self.pinned.take(size_bytes)


def _awaited(schedule: Schedule) -> list[bool]:
    """Return for each work instruction, in order, whether it is waited for."""
    awaited = {item.instruction for item in schedule.instructions if isinstance(item, Wait)}
    return [index in awaited for index, item in enumerate(schedule.instructions) if isinstance(item, Work)]
