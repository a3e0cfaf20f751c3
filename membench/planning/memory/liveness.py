"""Bytes that a schedule holds at each instruction: a static property of the program."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    Compute,
    Decode,
    Drop,
    Encode,
    Free,
    Load,
    Offload,
    Prefetch,
    Reserve,
    Reuse,
    Schedule,
    Synchronize,
    Wait,
    Work,
)
from membench.core.graph.task_graph import EXTERNAL_ROLES, Role
from membench.core.graph.timeline import Timeline
from membench.planning.workspaces import Workspaces


def residencies(schedule: Schedule, *, until: int | None = None) -> Iterator[tuple[int, bool]]:
    """Yield (block, whether it becomes resident or ceases to be), in order.

    A block ceases to be resident where its space is reused; a block that is returned to the caller never does.

    Args:
        until: the position of the first instruction to leave out.
    """
    for instruction in schedule.instructions[:until]:
        match instruction:
            case Compute(task):
                for block in schedule.graph.tasks[task].creates:
                    yield block, True
            case Prefetch(block) | Decode(block) | Encode(encoded=block):
                yield block, True
            case Free(block) | Reuse(dead=block):
                yield block, False


def spaces(schedule: Schedule, *, until: int | None = None) -> dict[int, int]:
    """Return the bytes of the space of each block that is on the device.

    Args:
        until: the position of the first instruction to leave out.
    """
    graph = schedule.graph
    found = {block.index: block.size_bytes for block in graph.blocks if block.is_external}
    for instruction in schedule.instructions[:until]:
        opened: tuple[int, ...] = ()
        match instruction:
            case Compute(task):
                opened = graph.tasks[task].creates
            case Prefetch(block) | Decode(block) | Encode(encoded=block):
                opened = (block,)
            case Reserve(block, size_bytes):
                found[block] = size_bytes
            case Reuse(block, dead):
                found[block] = found.pop(dead)
            case Free(block):
                del found[block]
        for block in opened:
            found.setdefault(block, graph.blocks[block].size_bytes)
    return found


def live_bytes(schedule: Schedule, roles: frozenset[Role] | None = None) -> list[int]:
    """Return the bytes in use during each instruction, workspace included.

    Args:
        roles: count only blocks that hold these (no workspace, no overhead, nothing unused); all by default.
    """
    found: list[int] = (_all_bytes(schedule) if roles is None else _bytes_of(schedule, roles)).tolist()
    return found


def _all_bytes(schedule: Schedule) -> NDArray[np.int64]:
    changes = schedule.space_changes
    of_blocks = _summed(changes.instructions, changes.size_bytes, len(schedule))
    return schedule.graph.external_bytes + of_blocks + changes.held_bytes + np.array(workspace_bytes(schedule))


def _bytes_of(schedule: Schedule, roles: frozenset[Role]) -> NDArray[np.int64]:
    graph, changes = schedule.graph, schedule.space_changes
    counted = np.array([block.role in roles for block in graph.blocks], bool)[changes.blocks]
    owned = roles & EXTERNAL_ROLES
    external_bytes = sum(block.size_bytes for block in graph.blocks if block.role in owned and block.is_external)
    return external_bytes + _summed(changes.instructions[counted], changes.size_bytes[counted], len(schedule))


def _summed(instructions: NDArray[np.int64], size_bytes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return for each instruction the sum of all sizes up to it."""
    added_bytes = np.zeros(count, np.int64)
    np.add.at(added_bytes, instructions, size_bytes)
    return np.cumsum(added_bytes)


def workspace_bytes(schedule: Schedule) -> list[int]:
    """Return the bytes of workspace during each instruction, those of tasks that may still run included."""
    tasks = schedule.graph.tasks
    if all(item.stream == COMPUTE_STREAM for item in schedule.instructions if isinstance(item, Compute)):
        own = (tasks[item.task].workspace_bytes if isinstance(item, Compute) else 0 for item in schedule.instructions)
        return list(own)
    of_other_streams = Workspaces()
    result = []
    for index, instruction in enumerate(schedule.instructions):
        own_bytes = 0
        match instruction:
            case Compute(task, stream):
                own_bytes = tasks[task].workspace_bytes
                if stream != COMPUTE_STREAM:
                    of_other_streams.take(stream, index, own_bytes)
                    own_bytes = 0
            case Wait(stream, earlier) if stream == COMPUTE_STREAM:
                work = schedule.instructions[earlier]
                assert isinstance(work, Work), "the schedule was validated"
                of_other_streams.waited(work.stream, earlier)
            case Synchronize():
                of_other_streams.synchronized()
        result.append(own_bytes + of_other_streams.held_bytes)
    return result


def host_live_bytes(schedule: Schedule) -> list[int]:
    """Return the bytes of host memory in use during each instruction: homes there, and buffers."""
    blocks = schedule.graph.blocks
    present = {block.index for block in blocks if block.host_location and not block.is_on_disk}
    total_bytes = schedule.graph.size_bytes(block for block in present if not blocks[block].is_part)
    result = []
    for instruction in schedule.instructions:
        match instruction:
            case Offload(block) | Load(block) if block not in present:
                present.add(block)
                total_bytes += blocks[block].size_bytes
            case Drop(block):
                present.remove(block)
                total_bytes -= blocks[block].size_bytes
        result.append(total_bytes)
    return result


def host_peak_bytes(schedule: Schedule) -> int:
    """Return the most bytes that a schedule has in host memory: homes, buffers, and states that kernels read there."""
    of_kernels = sum(task.host_bytes for task in schedule.graph.tasks)
    return of_kernels + max(host_live_bytes(schedule), default=0)


def peak_bytes(schedule: Schedule, roles: frozenset[Role]) -> int:
    """Return the most that blocks of these roles hold at any instruction."""
    return int(_bytes_of(schedule, roles).max(initial=0))


def average_bytes(schedule: Schedule, timeline: Timeline) -> float:
    """Return the bytes in use, workspace included, averaged over a step's time.

    Memory changes hands at the compute stream's position: what a task holds counts from the end of the one before it
    to its own end.
    """
    held_bytes = live_bytes(schedule)
    total, position_s = 0.0, 0.0
    for span in timeline.spans:
        if span.stream == COMPUTE_STREAM:
            total += held_bytes[span.instruction] * (span.end_s - position_s)
            position_s = span.end_s
    return total / position_s if position_s else float(max(held_bytes, default=0))


def copied_bytes(schedule: Schedule, kind: type[Offload] | type[Prefetch]) -> int:
    """Return the bytes that all `Offload` (or all `Prefetch`) instructions move."""
    return schedule.graph.size_bytes(item.block for item in schedule.instructions if isinstance(item, kind))
