"""Hazards that validate finds, in schedules that the builder does not emit."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from membench.core.errors import InvalidSchedule
from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    COPY_STREAM,
    HOST_STREAM,
    AllReduce,
    Compute,
    Free,
    Hold,
    Instruction,
    Offload,
    Prefetch,
    Reserve,
    Schedule,
    Synchronize,
    Wait,
)
from membench.core.graph.task_graph import HostLocation, Kind, Phase, Task, TaskGraph
from membench.planning.checking.validate import validate
from membench.planning.pool import FixedPool
from tests.helpers.planning.four_tasks import FIRST, GRADIENT, INPUT, in_parallel, migrating, parallel_tasks, visiting


def without(schedule: Schedule, unwanted: Callable[[Instruction], bool]) -> Schedule:
    """Replace instructions, and waits for them, by waits for nothing new, so that positions stay."""
    gone = {index for index, item in enumerate(schedule.instructions) if unwanted(item)}
    program = [
        Wait(COMPUTE_STREAM, 0) if index in gone or (isinstance(item, Wait) and item.instruction in gone) else item
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
    assert "more than the schedule's stated peak" in hazard(replace(schedule, peak_bytes=schedule.peak_bytes - 1))


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
    assert "still held at the end" in hazard(without(replace(schedule, peak_bytes=1000), lambda i: i == Free(INPUT)))
    never_brought = replace(schedule, instructions=(Compute(0), *schedule.instructions[2:]))
    assert "is read while it is not resident" in hazard(never_brought)


def test_what_is_written_at_home_on_the_host_must_go_back(visited: TaskGraph) -> None:
    update = replace(visited.tasks[0], writes=(INPUT, FIRST))
    graph = replace(visited, tasks=(update, *visited.tasks[1:]))
    assert "its home on the host was not updated" in hazard(visiting(graph))


def in_place(graph: TaskGraph, *, random: bool = False) -> TaskGraph:
    """The second task also updates the first activation, after which the fourth reads it."""
    tasks = [replace(task, random=random) for task in graph.tasks]
    tasks[1] = replace(tasks[1], writes=(FIRST, *tasks[1].writes))
    return replace(graph, tasks=tuple(tasks))


def issued(graph: TaskGraph, order: list[int], peak_bytes: int) -> Schedule:
    """All tasks in an order, everything freed at the end."""
    frees = [Free(block) for block in (FIRST, FIRST + 1, GRADIENT)]
    return Schedule("test", graph, (*map(Compute, order), *frees), peak_bytes)


def test_a_task_must_see_the_writes_that_it_sees_in_the_order_of_the_graph(graph: TaskGraph) -> None:
    """The third task reads the first activation before the second updates it, here or there."""
    reader = replace(graph.tasks[2], reads=(FIRST,))
    early = replace(graph, tasks=(*graph.tasks[:2], reader, graph.tasks[3]))
    late = in_place(early)
    validate(issued(early, [0, 2, 1, 3], peak_bytes=305))
    assert "task2 uses 'first' after 1 of its writes, not after 2" in hazard(issued(late, [0, 2, 1, 3], 305))


def test_random_tasks_keep_the_order_of_the_graph(graph: TaskGraph) -> None:
    independent = replace(graph.tasks[2], reads=(FIRST,))
    drawing = tuple(replace(task, random=True) for task in (*graph.tasks[:2], independent, graph.tasks[3]))
    random = replace(graph, tasks=drawing)
    validate(issued(random, [0, 1, 2, 3], peak_bytes=305))
    assert "random task task1 does not run in the graph's order" in hazard(issued(random, [0, 2, 1, 3], 305))


def test_a_block_is_prefetched_once_and_a_space_is_filled_at_once(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    position = next(i for i, item in enumerate(schedule.instructions) if isinstance(item, Prefetch))
    program = schedule.instructions
    twice = (*program[: position + 1], Prefetch(FIRST), *program[position + 1 :])
    assert "'first' is filled although it is resident" in hazard(replace(schedule, instructions=twice))
    early = (Reserve(GRADIENT, 40), *program)
    assert "has a space that the next work does not fill" in hazard(replace(schedule, instructions=early))


def test_the_stated_peak_is_exact(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    too_much = replace(schedule, peak_bytes=schedule.peak_bytes + 1)
    assert f"holds {schedule.peak_bytes} bytes at most, not the stated" in hazard(too_much)


def test_a_workspace_on_another_stream_counts_until_the_compute_stream_has_waited() -> None:
    schedule = in_parallel(parallel_tasks())
    validate(schedule, budget_bytes=335)
    assert "more than the schedule's stated peak 334" in hazard(replace(schedule, peak_bytes=334))
    assert "not the stated 336" in hazard(replace(schedule, peak_bytes=336))


def test_a_workspace_on_another_stream_is_taken_at_the_compute_stream_s_position() -> None:
    graph = parallel_tasks()
    only_workspace = replace(graph.tasks[1], reads=(), writes=(), creates=())
    graph = replace(graph, tasks=(graph.tasks[0], only_workspace, *graph.tasks[2:]))
    program = (Compute(0), Compute(1, "parallel"))
    found = hazard(Schedule("test", graph, program, peak_bytes=1000))
    assert found == "the workspace of task1 takes memory before the compute stream has come to this point"


def test_a_stream_of_copies_runs_no_tasks(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    position = max(i for i, item in enumerate(schedule.instructions) if isinstance(item, Compute))
    program = list(schedule.instructions)
    program[position] = Compute(3, COPY_STREAM)
    assert "stream 'copy' runs tasks and other work" in hazard(replace(schedule, instructions=tuple(program)))


def test_a_space_counts_from_its_reservation_on(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    position = schedule.instructions.index(Free(FIRST))
    program = (*schedule.instructions[:position], Reserve(GRADIENT, 40), *schedule.instructions[position:])
    assert (
        hazard(replace(schedule, instructions=program)) == "holds 280 bytes, more than the schedule's stated peak 245"
    )


def changed(graph: TaskGraph, **tasks: Task) -> TaskGraph:
    """The graph with other tasks in the places of those of these names."""
    return replace(graph, tasks=tuple(tasks.get(task.name, task) for task in graph.tasks))


def test_a_task_writes_into_memory_that_is_there(graph: TaskGraph) -> None:
    blind = changed(graph, task1=replace(graph.tasks[1], reads=(), writes=(FIRST, FIRST + 1)))
    program = (Compute(0), Free(FIRST), Compute(1))
    assert hazard(Schedule("test", blind, program, 1000)) == "'first' is written while it is not resident"


def test_a_task_runs_on_a_stream_of_its_processor(graph: TaskGraph) -> None:
    on_host = changed(graph, task0=replace(graph.tasks[0], on_host=True))
    for each, stream in ((graph, HOST_STREAM), (on_host, COMPUTE_STREAM)):
        found = hazard(Schedule("test", each, (Compute(0, stream),), 1000))
        assert found == f"task task0 runs on stream {stream!r}, which is not of its processor"


def test_a_task_of_the_host_takes_no_device_memory_and_writes_to_homes_alone(graph: TaskGraph) -> None:
    task = replace(graph.tasks[0], reads=(), creates=(), workspace_bytes=0, on_host=True)
    program = (Compute(0, HOST_STREAM),)
    for greedy in (replace(task, creates=(FIRST,)), replace(task, workspace_bytes=1)):
        found = hazard(Schedule("test", changed(graph, task0=greedy), program, 1000))
        assert found == "task task0 of the host takes device memory"
    found = hazard(Schedule("test", changed(graph, task0=task), program, 1000))
    assert found == "'first' is written on the host, where it has no home"


def test_collectives_run_alone_on_the_stream_of_their_axis_and_in_order(graph: TaskGraph) -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 60, "data")
    first, *others = (replace(task, reads=(FIRST,) if task.index else task.reads) for task in graph.tasks)
    graph = replace(graph, tasks=(first, *(replace(task, collective=collective) for task in others[:2]), others[2]))

    def issued_on(stream: str, *tasks: int) -> Schedule:
        program = (Compute(0), Wait(collective.stream, 0), *(Compute(task, stream) for task in tasks))
        return Schedule("test", graph, program, 1000)

    elsewhere = "which is not that of its collective"
    assert hazard(issued_on(COMPUTE_STREAM, 1)) == f"task task1 runs on stream 'compute', {elsewhere}"
    assert hazard(issued_on(collective.stream, 3)) == f"task task3 runs on stream 'collectives data', {elsewhere}"
    swapped = "collective task1 does not run in the graph's order, as in other ranks"
    assert hazard(issued_on(collective.stream, 2, 1)) == swapped
    assert "tasks were never computed" in hazard(issued_on(collective.stream, 1, 2))


def test_only_what_the_step_asks_for_is_averaged(graph: TaskGraph) -> None:
    program = (Compute(0), Wait("exchange", 0), AllReduce(FIRST))
    found = hazard(Schedule("test", graph, program, 1000))
    assert found == "'first' is averaged over all processes, which this step does not ask for"


def test_a_home_on_the_host_is_handed_over_once_it_is_written(graph: TaskGraph) -> None:
    state = replace(graph.blocks[INPUT], host_location=HostLocation(INPUT))
    update = Task(0, "update", Kind.OTHER, Phase.UPDATE, 1, (INPUT,), (INPUT,), (), on_host=True)
    graph = replace(graph, blocks=(state,), tasks=(update,))
    program = (Compute(0, HOST_STREAM), Wait(COMPUTE_STREAM, 0))
    validate(Schedule("test", graph, program, 0))
    assert hazard(Schedule("test", graph, program[:1], 0)) == (
        "input is handed to the caller while update (instruction 0 on stream host) may still use it"
    )
