"""The only loop that executes a schedule, on any backend.

begin
for each instruction, in the order of the program:
    work (compute, offload, prefetch, encode, decode, all-reduce) joins its stream and leaves an event
    a wait makes its stream wait for such an event
    reserve, reuse, hold and free allocate and free memory at once
    at the turn, where the loss is the caller's: the loop stops, and goes on in the backward pass
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

_Bound = tuple[Callable[..., Event], tuple[Any, ...]]
"""A method of a backend, and its arguments."""


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
        calls = [self._bind(instruction, schedule.graph.tasks) for instruction in schedule.instructions]
        numbered = tuple(enumerate(calls))
        self._forward, self._backward = numbered[: schedule.turn], numbered[schedule.turn :]
        self._work = tuple(
            index for index, instruction in enumerate(schedule.instructions) if isinstance(instruction, Work)
        )

    def issue(self, *, timed: bool) -> tuple[int, ...]:
        """Issue one step; return the positions of the instructions that joined a stream.

        Args:
            timed: the backend's `timeline` will be called.
        """
        self.issue_forward(timed=timed)
        return self.issue_backward()

    def issue_forward(self, *, timed: bool) -> None:
        """Issue a step's instructions up to the turn, all of them if it has none."""
        self._backend.begin(timed=timed)
        self._issue(self._forward)

    def issue_backward(self) -> tuple[int, ...]:
        """Issue the other instructions of a step; return the positions of all that joined a stream."""
        self._issue(self._backward)
        self._backend.end()
        return self._work

    def _issue(self, calls: tuple[tuple[int, _Bound], ...]) -> None:
        events = self._events
        for index, (call, arguments) in calls:
            events[index] = call(*arguments)

    def _bind(self, instruction: Instruction, tasks: Sequence[Task]) -> _Bound:
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


def _move(instruction: Offload | Prefetch | Encode | Decode, backend: Backend) -> _Bound:
    match instruction:
        case Offload(block, stream):
            return backend.offload, (block, stream)
        case Prefetch(block, stream):
            return backend.prefetch, (block, stream)
        case Encode(block, encoded, codec, stream):
            return backend.encode, (block, encoded, codec, stream)
        case Decode(block, encoded, codec, stream):
            return backend.decode, (block, encoded, codec, stream)
