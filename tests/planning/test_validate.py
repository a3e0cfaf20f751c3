"""Hazards that validate finds, in schedules that the builder does not emit."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from membench.core.errors import InvalidSchedule
from membench.core.schedule import (
    COMPUTE_STREAM,
    COPY_STREAM,
    Compute,
    Free,
    Hold,
    Instruction,
    Offload,
    Prefetch,
    Schedule,
    Synchronize,
    Wait,
)
from membench.core.task_graph import Kind, Phase, Task, TaskGraph
from membench.planning.pool import FixedPool
from membench.planning.validate import validate
from tests.helpers.four_tasks import FIRST, GRADIENT, INPUT, migrating, visiting


def without(schedule: Schedule, unwanted: Callable[[Instruction], bool]) -> Schedule:
    """Replace instructions, and waits for them, by waits for nothing new, so that positions stay."""
    gone = {index for index, item in enumerate(schedule.instructions) if unwanted(item)}
    program = [
        Wait(COMPUTE_STREAM, 0)
        if index in gone or (isinstance(item, Wait) and item.instruction in gone)
        else item
        for index, item in enumerate(schedule.instructions)
    ]
    return replace(schedule, instructions=tuple(program))


def hazard(schedule: Schedule) -> str:
    with pytest.raises(InvalidSchedule) as found:
        validate(schedule)
    return found.value.hazard


def test_validate_needs_every_wait_of_a_migration(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    waits = [i for i, item in enumerate(schedule.instructions) if isinstance(item, Wait)]
    assert len(waits) >= 4
    found = set()
    for position in waits:
        program = list(schedule.instructions)
        program[position] = Wait(COMPUTE_STREAM, 0)
        found.add(hazard(replace(schedule, instructions=tuple(program))).split(" while ")[0])
    assert any("is given back" in text for text in found)
    assert any("is read on copy" in text for text in found)
    assert any("is read on compute" in text for text in found)
    assert any("takes memory before" in text for text in found)


def test_validate_finds_what_is_missing_or_left(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    assert "still held at the end" in hazard(without(schedule, lambda i: i == Free(GRADIENT)))
    assert "is read while it is not resident" in hazard(without(schedule, lambda i: isinstance(i, Prefetch)))
    assert "has no valid copy" in hazard(without(schedule, lambda i: isinstance(i, Offload)))
    twice = replace(schedule, instructions=(*schedule.instructions, Compute(0)))
    assert "runs twice" in hazard(twice)
    early = replace(schedule, instructions=schedule.instructions[:1])
    assert "3 tasks were never computed" in hazard(early)


def test_validate_keeps_the_budget_and_the_stated_peak(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    validate(schedule, budget_bytes=schedule.peak_bytes)
    with pytest.raises(InvalidSchedule, match="more than the budget"):
        validate(schedule, budget_bytes=schedule.peak_bytes - 1)
    assert "more than the schedule's stated peak" in hazard(
        replace(schedule, peak_bytes=schedule.peak_bytes - 1)
    )


def test_a_copy_on_the_host_is_stale_after_a_write(graph: TaskGraph) -> None:
    update = Task(2, "update", Kind.OTHER, Phase.FORWARD, 1, (FIRST,), (FIRST,), ())
    tasks = (*graph.tasks[:2], update, *(replace(t, index=t.index + 1) for t in graph.tasks[2:]))
    graph = replace(graph, tasks=tasks)
    program = (
        Compute(0), Wait(COPY_STREAM, 0), Offload(FIRST), Compute(1), Synchronize(), Compute(2),
        Free(FIRST), Wait(COPY_STREAM, 5), Prefetch(FIRST),
    )  # fmt: skip
    assert "no valid copy" in hazard(Schedule("test", graph, program, 1000))


def test_validate_counts_what_a_pool_leaves_unused(graph: TaskGraph) -> None:
    schedule = migrating(graph, pool=FixedPool(1000))
    assert "more than the schedule's stated peak 1099" in hazard(replace(schedule, peak_bytes=1099))
    with pytest.raises(InvalidSchedule, match="more than the budget"):
        validate(schedule, budget_bytes=1099)
    assert schedule.instructions[-1] == Hold(0)
    still_held = replace(schedule, instructions=schedule.instructions[:-1])
    assert "unused bytes are still held at the end" in hazard(still_held)


def test_validate_finds_a_block_of_the_host_that_is_never_prefetched_or_freed(visited: TaskGraph) -> None:
    schedule = visiting(visited)
    assert "still held at the end" in hazard(
        without(replace(schedule, peak_bytes=1000), lambda i: i == Free(INPUT))
    )
    never_brought = replace(schedule, instructions=(Compute(0), *schedule.instructions[2:]))
    assert "is read while it is not resident" in hazard(never_brought)


def test_what_is_written_at_home_on_the_host_must_go_back(visited: TaskGraph) -> None:
    update = replace(visited.tasks[0], writes=(INPUT, FIRST))
    graph = replace(visited, tasks=(update, *visited.tasks[1:]))
    assert "its home on the host was not updated" in hazard(visiting(graph))
