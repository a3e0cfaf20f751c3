"""The builder refuses what cannot be; validate finds what the builder would never emit."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from membench.core.errors import InfeasibleSchedule, InvalidSchedule, UnsupportedStrategy
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
from membench.core.task_graph import Block, HostLocation, Kind, Phase, Role, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.liveness import copied_bytes, live_bytes
from membench.planning.pool import ALIGNMENT_BYTES, BestFitPool, FixedPool, Pool
from membench.planning.region import Region, plan_region
from membench.planning.validate import validate

INPUT, FIRST, SECOND, GRADIENT, RESULT = range(5)


@pytest.fixture
def graph() -> TaskGraph:
    """input -> first -> second -> gradient -> result; the result also reads first."""
    roles = [Role.INPUT, Role.ACTIVATION, Role.ACTIVATION, Role.GRADIENT, Role.WEIGHT_GRADIENT]
    names = ["input", "first", "second", "gradient", "result"]
    sizes = [100, 80, 60, 40, 20]
    blocks = tuple(
        Block(i, name, size, role, layer=i - 1)
        for i, (name, size, role) in enumerate(zip(names, sizes, roles, strict=True))
    )
    reads = [(INPUT,), (FIRST,), (SECOND,), (GRADIENT, FIRST)]
    tasks = tuple(
        Task(
            i,
            f"task{i}",
            Kind.OTHER,
            Phase.BACKWARD if i > 1 else Phase.FORWARD,
            i,
            read,
            (i + 1,),
            (i + 1,),
            workspace_bytes=5,
        )
        for i, read in enumerate(reads)
    )
    return TaskGraph("toy", 1, blocks, tasks, ("one", "two", "three", "four"))


def migrating(graph: TaskGraph, *, pool: Pool | None = None, region: Region | None = None) -> Schedule:
    """Send the first activation away while it is not needed."""
    builder = ScheduleBuilder("test", graph, budget_bytes=None, pool=pool, region=region)
    builder.compute(graph.tasks[0])
    builder.offload(FIRST)
    builder.compute(graph.tasks[1])
    builder.free(FIRST)
    builder.compute(graph.tasks[2])
    builder.free_dead()
    builder.prefetch(FIRST)
    builder.compute(graph.tasks[3])
    return builder.finish()


def test_migration_is_valid_and_its_memory_is_counted(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    validate(schedule)
    assert live_bytes(schedule)[-1] == 100 + 20  # input and result
    assert max(live_bytes(schedule)) == schedule.peak_bytes == 100 + 80 + 60 + 5
    assert copied_bytes(schedule, Offload) == copied_bytes(schedule, Prefetch) == 80


def test_a_roomy_program_prints_for_a_person(graph: TaskGraph) -> None:
    text = str(migrating(graph))
    assert "schedule of toy (batch 1) by test" in text
    assert "offload first (80 B)" in text
    assert "free first" in text


def refuse(graph: TaskGraph, act: Callable[[ScheduleBuilder], None], message: str) -> None:
    builder = ScheduleBuilder("test", graph, budget_bytes=None)
    builder.compute(graph.tasks[0])
    with pytest.raises(UnsupportedStrategy, match=message):
        act(builder)


def prefetch_what_is_dead(builder: ScheduleBuilder) -> None:
    builder.compute(builder.graph.tasks[1])
    builder.offload(SECOND)
    builder.compute(builder.graph.tasks[2])
    builder.free_dead()
    builder.prefetch(SECOND)


def test_the_builder_refuses_what_cannot_be(graph: TaskGraph) -> None:
    refuse(graph, lambda b: b.compute(graph.tasks[2]), "'task2' reads 'second', which is not resident")
    refuse(graph, lambda b: b.free(FIRST), "still needed and has no copy")
    refuse(graph, lambda b: b.free(SECOND), "not resident and cannot be freed")
    refuse(graph, lambda b: b.offload(SECOND), "not resident and cannot be offloaded")
    refuse(graph, lambda b: b.prefetch(SECOND), "never offloaded")
    refuse(graph, lambda b: b.prefetch(FIRST), "resident already")
    refuse(graph, lambda b: (b.offload(FIRST), b.offload(FIRST))[0], "on the host already")
    refuse(graph, prefetch_what_is_dead, "a copy back would be wasted")
    refuse(graph, lambda b: b.reuse(SECOND, dead=FIRST), "not a resident dead block")
    refuse(graph, lambda b: b.finish() and None, "'task1' was never computed")


def test_a_budget_below_the_peak_names_the_task_and_the_bounds(graph: TaskGraph) -> None:
    builder = ScheduleBuilder("test", graph, budget_bytes=200)
    for task in graph.tasks:
        builder.compute(task)
    with pytest.raises(InfeasibleSchedule) as refusal:
        builder.finish()
    assert refusal.value.task == "task3"
    assert refusal.value.needed_bytes == 100 + 80 + 60 + 40 + 20 + 5
    assert refusal.value.lower_bound_bytes == 100 + 80 + 60 + 5  # the neediest task alone


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


def test_a_region_holds_every_block_and_is_reused(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    region = plan_region(schedule)
    assert region.piece_bytes == (80, 60, 40)  # the gradient meets the second map, then the returning first
    fixed = migrating(graph, region=region)
    validate(fixed)
    assert fixed.peak_bytes == 100 + region.total_bytes + 20 + 5


def held_at_work(schedule: Schedule) -> list[int]:
    """Return what is in use beside the caller's blocks during each task and each copy back."""
    held_bytes = zip(schedule.instructions, live_bytes(schedule), strict=True)
    external_bytes = schedule.graph.external_bytes
    return [held - external_bytes for item, held in held_bytes if isinstance(item, Compute | Prefetch)]


@pytest.mark.parametrize("size_bytes", [145, 1000])
def test_a_fixed_pool_is_in_use_as_a_whole(graph: TaskGraph, size_bytes: int) -> None:
    schedule = migrating(graph, pool=FixedPool(size_bytes))
    validate(schedule)
    assert held_at_work(schedule) == [size_bytes] * 5
    assert schedule.peak_bytes == 100 + size_bytes
    assert live_bytes(schedule)[-1] == 100 + 20  # input and result


def test_a_fixed_pool_that_is_too_small_grows_for_as_long_as_it_must(graph: TaskGraph) -> None:
    schedule = migrating(graph, pool=FixedPool(110))
    validate(schedule)
    # first and workspace fit; second beside first; second, gradient; gradient, first; and the result
    assert held_at_work(schedule) == [110, 80 + 60 + 5, 110, 40 + 80, 40 + 80 + 20 + 5]
    assert schedule.peak_bytes == 100 + 80 + 60 + 5


def test_the_extent_of_a_best_fit_pool_stays_in_use(graph: TaskGraph) -> None:
    schedule = migrating(graph, pool=BestFitPool())
    validate(schedule)
    # Workspaces come out of the pool too: first, workspace | first, second, workspace | gradient in the place of
    # first | first in that of second | the result in that of the workspace, and a workspace behind it.
    assert held_at_work(schedule) == [ALIGNMENT_BYTES * pieces for pieces in (2, 3, 3, 3, 4)]


def test_validate_counts_what_a_pool_leaves_unused(graph: TaskGraph) -> None:
    schedule = migrating(graph, pool=FixedPool(1000))
    assert "more than the schedule's stated peak 1099" in hazard(replace(schedule, peak_bytes=1099))
    with pytest.raises(InvalidSchedule, match="more than the budget"):
        validate(schedule, budget_bytes=1099)
    assert schedule.instructions[-1] == Hold(0)
    still_held = replace(schedule, instructions=schedule.instructions[:-1])
    assert "unused bytes are still held at the end" in hazard(still_held)


@pytest.fixture
def visited(graph: TaskGraph) -> TaskGraph:
    """The same graph; its input lives on the host."""
    in_host_memory = replace(graph.blocks[INPUT], host_location=HostLocation(INPUT))
    return replace(graph, blocks=(in_host_memory, *graph.blocks[1:]))


def visiting(graph: TaskGraph) -> Schedule:
    """Bring the input for the one task that reads it, and drop it without a copy back."""
    builder = ScheduleBuilder("test", graph, budget_bytes=None)
    builder.prefetch(INPUT)
    for task in graph.tasks:
        builder.compute(task)
        builder.free_dead()
    return builder.finish()


def test_a_block_at_home_on_the_host_visits_and_leaves_without_a_copy(visited: TaskGraph) -> None:
    schedule = visiting(visited)
    validate(schedule)
    assert visited.external_bytes == 0
    assert visited.lower_bound_bytes == 100 + 80 + 5
    assert max(live_bytes(schedule)) == schedule.peak_bytes == 100 + 80 + 5
    assert live_bytes(schedule, frozenset({Role.INPUT}))[:2] == [100, 100]
    assert live_bytes(schedule)[-1] == 20  # the result alone
    assert copied_bytes(schedule, Prefetch) == 100
    assert copied_bytes(schedule, Offload) == 0


def test_a_block_at_home_on_the_host_is_not_there_by_itself(visited: TaskGraph) -> None:
    builder = ScheduleBuilder("test", visited, budget_bytes=None)
    with pytest.raises(UnsupportedStrategy, match="reads 'input', which is not resident"):
        builder.compute(visited.tasks[0])
    builder.prefetch(INPUT)
    with pytest.raises(UnsupportedStrategy, match="on the host already; a second copy would be wasted"):
        builder.offload(INPUT)
    schedule = visiting(visited)
    assert "still held at the end" in hazard(
        without(replace(schedule, peak_bytes=1000), lambda i: i == Free(INPUT))
    )
    never_brought = replace(schedule, instructions=(Compute(0), *schedule.instructions[2:]))
    assert "is read while it is not resident" in hazard(never_brought)


def test_what_is_written_at_home_on_the_host_must_go_back(visited: TaskGraph) -> None:
    update = replace(visited.tasks[0], writes=(INPUT, FIRST))
    graph = replace(visited, tasks=(update, *visited.tasks[1:]))
    assert "its home on the host has not got that" in hazard(visiting(graph))
