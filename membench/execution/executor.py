"""The only loop that executes a schedule, on any backend.

begin
for each instruction, in the order of the program:
    work (compute, offload, prefetch, encode, decode, all-reduce) joins its stream and leaves an event
    a wait makes its stream wait for such an event
    reserve, reuse, hold and free change who holds which memory, here and now
end: the compute stream has waited for every other
"""

from membench.backends.base import Backend, Event
from membench.schedule import (
    AllReduce,
    Compute,
    Decode,
    Encode,
    Free,
    Hold,
    Offload,
    Prefetch,
    Reserve,
    Reuse,
    Schedule,
    Synchronize,
    Wait,
)
from membench.timeline import Timeline


def execute(schedule: Schedule, backend: Backend) -> Timeline:
    """Run one step of a validated schedule, wait for it, and return what ran when."""
    return backend.timeline(issue(schedule, backend, timed=True))


def issue(schedule: Schedule, backend: Backend, *, timed: bool) -> tuple[int, ...]:
    """Issue one step of a validated schedule; return the positions of what joined a stream.

    Args:
        timed: the backend will be asked for the timeline.
    """
    tasks = schedule.graph.tasks
    events: dict[int, Event] = {}
    backend.begin(timed=timed)
    for index, instruction in enumerate(schedule.instructions):
        match instruction:
            case Compute(task, stream):
                events[index] = backend.compute(tasks[task], stream)
            case Free(block):
                backend.free(block)
            case Offload() | Prefetch() | Encode() | Decode():
                events[index] = _move(instruction, backend)
            case AllReduce(block, root, stream):
                events[index] = backend.all_reduce(block, root, stream)
            case Wait(stream, earlier):
                backend.wait(stream, events[earlier])
            case Reuse(block, dead):
                backend.reuse(block, dead)
            case Reserve(block, space_bytes):
                backend.reserve(block, space_bytes)
            case Hold(size_bytes):
                backend.hold(size_bytes)
            case Synchronize():
                backend.synchronize()
    backend.end()
    return tuple(events)


def _move(instruction: Offload | Prefetch | Encode | Decode, backend: Backend) -> Event:
    match instruction:
        case Offload(block, stream):
            return backend.offload(block, stream)
        case Prefetch(block, stream):
            return backend.prefetch(block, stream)
        case Encode(block, encoded, codec, stream):
            return backend.encode(block, encoded, codec, stream)
        case Decode(block, encoded, codec, stream):
            return backend.decode(block, encoded, codec, stream)
