"""The only loop that executes a schedule, on any backend.

begin
for each instruction, in the order of the program:
    work (compute, offload, prefetch, load, store, drop, encode, decode, all-reduce) joins its stream and leaves an
    event a wait makes its stream wait for such an event reserve, reuse, hold and free allocate and free memory at once
    a run of tasks of the compute stream and of frees is one call, from the second step on at the turn, where the loss
    is the caller's: the loop stops, and goes on in the backward pass
end: the compute stream has waited for every other
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from membench.backends.base import Backend, Event
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    AllReduce,
    Compute,
    Decode,
    Drop,
    Encode,
    Free,
    Hold,
    Instruction,
    Load,
    Offload,
    Prefetch,
    Reserve,
    Reuse,
    Schedule,
    Store,
    Synchronize,
    Wait,
    Work,
)
from membench.core.graph.task_graph import Task
from membench.core.graph.timeline import Timeline

_Bound = tuple[Callable[..., Event], tuple[Any, ...]]
"""A method of a backend, or a function that it has made, and its arguments."""

_Call = tuple[int, _Bound]
"""A call with the position of the instruction whose event it returns."""

_Calls = list[_Call]
"""Calls in order."""

_LONGEST_RUN = 512
"""Instructions: Python compiles a function of many thousand lines slowly."""


def execute(schedule: Schedule, backend: Backend) -> Timeline:
    """Run one step of a validated schedule, wait for it, and return its timeline; each call is made as it is issued."""
    backend.prepare(schedule)
    backend.begin(timed=True)
    events: list[Event] = [None] * len(schedule)
    _issue(_calls(schedule, backend, events), events)
    backend.end()
    return backend.timeline(_work(schedule))


class BoundSchedule:
    """A validated schedule on a backend, which is prepared for it: for each instruction a method and its arguments.

    Bound once for all steps, because matching an instruction takes about as long as a small operator. From the second
    step on, one without a timeline has a call for each run of instructions.
    """

    def __init__(self, schedule: Schedule, backend: Backend) -> None:
        self.schedule = schedule
        self._backend = backend
        backend.prepare(schedule)
        self._events: list[Event] = [None] * len(schedule)
        self._one_by_one = list(_calls(schedule, backend, self._events))
        self._in_runs: tuple[_Calls, _Calls] | None = None
        self._backward: _Calls = []
        self._has_run = False
        self._work = _work(schedule)

    def issue(self, *, timed: bool) -> tuple[int, ...]:
        """Issue one step; return the positions of the instructions that joined a stream.

        Args:
            timed: the backend's `timeline` will be called.
        """
        self.issue_forward(timed=timed)
        return self.issue_backward()

    def issue_forward(self, *, timed: bool) -> None:
        """Issue a step's instructions up to the turn, all of them if it has none."""
        forward, self._backward = self._parts(timed=timed)
        self._backend.begin(timed=timed)
        _issue(forward, self._events)

    def issue_backward(self) -> tuple[int, ...]:
        """Issue the other instructions of a step; return the positions of all that joined a stream."""
        _issue(self._backward, self._events)
        self._backend.end()
        self._has_run = True
        return self._work

    def _parts(self, *, timed: bool) -> tuple[_Calls, _Calls]:
        """Return a step's calls up to the turn and from there on."""
        turn = self.schedule.turn
        if timed or not self._has_run:
            return self._one_by_one[:turn], self._one_by_one[turn:]
        if self._in_runs is None:
            self._in_runs = self._with_runs(range(turn)), self._with_runs(range(turn, len(self._one_by_one)))
        return self._in_runs

    def _with_runs(self, positions: Iterable[int]) -> _Calls:
        """Return the calls of these instructions, with one in place of each run's."""
        calls: _Calls = []
        for run in _runs(self.schedule.instructions, positions):
            members = [each for at in run if isinstance(each := self.schedule.instructions[at], Compute | Free)]
            tasks = [at for at in run if isinstance(self.schedule.instructions[at], Compute)]
            function = self._backend.run_of(members) if tasks and len(members) > 1 else None
            calls += [self._one_by_one[at] for at in run] if function is None else [(tasks[-1], (function, ()))]
        return calls


def _work(schedule: Schedule) -> tuple[int, ...]:
    """Return the positions of the instructions that join a stream."""
    return tuple(index for index, instruction in enumerate(schedule.instructions) if isinstance(instruction, Work))


def _issue(calls: Iterable[_Call], events: list[Event]) -> None:
    for index, (call, arguments) in calls:
        events[index] = call(*arguments)


def _calls(schedule: Schedule, backend: Backend, events: Sequence[Event]) -> Iterator[_Call]:
    """Yield the call of each instruction; waits are for `events`."""
    for index, instruction in enumerate(schedule.instructions):
        yield index, _bind(instruction, backend, schedule.graph.tasks, events)


def _bind(instruction: Instruction, backend: Backend, tasks: Sequence[Task], events: Sequence[Event]) -> _Bound:
    match instruction:
        case Compute(task, stream):
            return backend.compute, (tasks[task], stream)
        case Free(block):
            return backend.free, (block,)
        case Wait(stream, earlier):
            return _wait, (backend, events, stream, earlier)
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
        case Offload() | Prefetch() | Load() | Store() | Drop() | Encode() | Decode():
            return _move(instruction, backend)


def _runs(instructions: Sequence[Instruction], positions: Iterable[int]) -> Iterator[list[int]]:
    """Yield positions in order: those of a run together, others alone; a task that a stream waits for ends its run."""
    awaited = {item.instruction for item in instructions if isinstance(item, Wait)}
    run: list[int] = []
    for position in positions:
        item = instructions[position]
        is_task = isinstance(item, Compute) and item.stream == COMPUTE_STREAM
        joins = is_task or isinstance(item, Free)
        if run and (not joins or len(run) == _LONGEST_RUN):
            yield run
            run = []
        run.append(position)
        if not joins or position in awaited:
            yield run
            run = []
    if run:
        yield run


def _wait(backend: Backend, events: Sequence[Event], stream: str, earlier: int) -> None:
    """Wait for an event. Not a method: a program that references itself would keep device memory until a collection."""
    backend.wait(stream, events[earlier])


def _move(instruction: Offload | Prefetch | Load | Store | Drop | Encode | Decode, backend: Backend) -> _Bound:
    match instruction:
        case Offload(block, stream):
            return backend.offload, (block, stream)
        case Prefetch(block, stream):
            return backend.prefetch, (block, stream)
        case Load(block, stream):
            return backend.load, (block, stream)
        case Store(block, stream):
            return backend.store, (block, stream)
        case Drop(block, stream):
            return backend.drop, (block, stream)
        case Encode(block, encoded, codec, stream):
            return backend.encode, (block, encoded, codec, stream)
        case Decode(block, encoded, codec, stream):
            return backend.decode, (block, encoded, codec, stream)
