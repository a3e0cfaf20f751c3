"""The only loop that executes a schedule, on any backend.

begin
for each instruction, in the order of the program:
    work (compute, offload, prefetch, encode, decode, all-reduce) joins its stream and leaves an event
    a wait makes its stream wait for such an event
    reserve, reuse, hold and free allocate and free memory at once
end: the compute stream has waited for every other
"""

from collections.abc import Callable, Sequence
from typing import Any

from membench.backends.base import Backend, Event
from membench.core.schedule import (
    AllReduce,
    Compute,
    Decode,
    Encode,
    Free,
    Hold,
    Instruction,
    Offload,
    Prefetch,
    Reserve,
    Reuse,
    Schedule,
    Synchronize,
    Wait,
    Work,
)
from membench.core.task_graph import Task
from membench.core.timeline import Timeline


def execute(schedule: Schedule, backend: Backend) -> Timeline:
    """Run one step of a validated schedule, wait for it, and return its timeline."""
    return backend.timeline(Program(schedule, backend).issue(timed=True))


class Program:
    """A validated schedule on a backend: for each instruction a method of the backend and its arguments.

    Bound once for all steps, because matching an instruction takes about as long as a small operator.
    """

    def __init__(self, schedule: Schedule, backend: Backend) -> None:
        self.schedule = schedule
        self._backend = backend
        self._events: list[Event] = [None] * len(schedule.instructions)
        self._calls = [self._bind(instruction, schedule.graph.tasks) for instruction in schedule.instructions]
        self._work = tuple(
            index for index, instruction in enumerate(schedule.instructions) if isinstance(instruction, Work)
        )

    def issue(self, *, timed: bool) -> tuple[int, ...]:
        """Issue one step; return the positions of the instructions that joined a stream.

        Args:
            timed: the backend's `timeline` will be called.
        """
        events = self._events
        self._backend.begin(timed=timed)
        for index, (call, arguments) in enumerate(self._calls):
            events[index] = call(*arguments)
        self._backend.end()
        return self._work

    def _bind(
        self, instruction: Instruction, tasks: Sequence[Task]
    ) -> tuple[Callable[..., Event], tuple[Any, ...]]:
        backend = self._backend
        match instruction:
            case Compute(task, stream):
                return backend.compute, (tasks[task], stream)
            case Free(block):
                return backend.free, (block,)
            case Wait(stream, earlier):
                return _wait, (backend, self._events, stream, earlier)
            case Reuse(block, dead):
                return backend.reuse, (block, dead)
            case Reserve(block, space_bytes):
                return backend.reserve, (block, space_bytes)
            case Hold(size_bytes):
                return backend.hold, (size_bytes,)
            case Synchronize():
                return backend.synchronize, ()
            case AllReduce(block, root, stream):
                return backend.all_reduce, (block, root, stream)
            case Offload() | Prefetch() | Encode() | Decode():
                return _move(instruction, backend)


def _wait(backend: Backend, events: Sequence[Event], stream: str, earlier: int) -> None:
    """Wait for an event. Not a method: a program that references itself would keep device memory until a collection."""
    backend.wait(stream, events[earlier])


def _move(
    instruction: Offload | Prefetch | Encode | Decode, backend: Backend
) -> tuple[Callable[..., Event], tuple[Any, ...]]:
    match instruction:
        case Offload(block, stream):
            return backend.offload, (block, stream)
        case Prefetch(block, stream):
            return backend.prefetch, (block, stream)
        case Encode(block, encoded, codec, stream):
            return backend.encode, (block, encoded, codec, stream)
        case Decode(block, encoded, codec, stream):
            return backend.decode, (block, encoded, codec, stream)
