"""The builder: counted memory, and refusals of what cannot be scheduled."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from membench.core.errors import InfeasibleSchedule, UnsupportedStrategy
from membench.core.graph.schedule import Compute, Offload, Prefetch, Schedule, Wait
from membench.core.graph.task_graph import Role, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import copied_bytes, live_bytes
from membench.planning.pool import ALIGNMENT_BYTES, BestFitPool, FixedPool
from tests.helpers.planning.four_tasks import FIRST, INPUT, SECOND, in_parallel, migrating, parallel_tasks, visiting
from tests.helpers.planning.timings import highest_bytes


def test_migration_is_valid_and_its_memory_is_counted(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    validate(schedule)
    assert live_bytes(schedule)[-1] == 100 + 20  # input and result
    assert max(live_bytes(schedule)) == schedule.peak_bytes == 100 + 80 + 60 + 5
    assert copied_bytes(schedule, Offload) == copied_bytes(schedule, Prefetch) == 80


def test_a_schedule_prints_readably(graph: TaskGraph) -> None:
    text = str(migrating(graph))
    assert "schedule of toy (batch 1) by test" in text
    assert "offload first (80 B)" in text
    assert "free first" in text


def refuse(graph: TaskGraph, act: Callable[[ScheduleBuilder], None], message: str) -> None:
    builder = ScheduleBuilder("test", graph, budget_bytes=None)
    builder.compute(graph.tasks[0])
    with pytest.raises(UnsupportedStrategy, match=message):
        act(builder)


def test_what_comes_back_dead_is_freed_with_what_is_dead(graph: TaskGraph) -> None:
    builder = ScheduleBuilder("test", graph, budget_bytes=None)
    for task in graph.tasks[:2]:
        builder.compute(task)
    builder.offload(SECOND)
    builder.compute(graph.tasks[2])
    builder.free_dead()
    builder.prefetch(SECOND)
    assert builder.dead_blocks() == [SECOND]
    builder.free_dead()
    assert not builder.is_resident(SECOND)
    builder.compute(graph.tasks[3])
    validate(builder.finish())


def test_the_builder_refuses_what_cannot_be(graph: TaskGraph) -> None:
    refuse(graph, lambda b: b.compute(graph.tasks[2]), "'task2' reads 'second', which is not resident")
    refuse(graph, lambda b: b.free(FIRST), "still needed and has no copy")
    refuse(graph, lambda b: b.free(SECOND), "not resident and cannot be freed")
    refuse(graph, lambda b: b.offload(SECOND), "not resident and cannot be offloaded")
    refuse(graph, lambda b: b.prefetch(SECOND), "never offloaded")
    refuse(graph, lambda b: b.prefetch(FIRST), "resident already")
    refuse(graph, lambda b: (b.offload(FIRST), b.offload(FIRST))[0], "on the host already")
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
    assert refusal.value.lower_bound_bytes == 100 + 80 + 60 + 5  # the largest task


def held_at_work(schedule: Schedule) -> list[int]:
    """Return the bytes in use, without the caller's blocks, during each task and each prefetch."""
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
    # first and workspace fit; second in addition to first; second, gradient; gradient, first; and the result
    assert held_at_work(schedule) == [110, 80 + 60 + 5, 110, 40 + 80, 40 + 80 + 20 + 5]
    assert schedule.peak_bytes == 100 + 80 + 60 + 5


def test_the_extent_of_a_best_fit_pool_stays_in_use(graph: TaskGraph) -> None:
    schedule = migrating(graph, pool=BestFitPool())
    validate(schedule)
    # Workspaces come out of the pool too: first, workspace | first, second, workspace | gradient in the place of
    # first | first in that of second | the result in that of the workspace, and a workspace behind it.
    assert held_at_work(schedule) == [ALIGNMENT_BYTES * pieces for pieces in (2, 3, 3, 3, 4)]


def test_a_workspace_on_another_stream_is_held_until_the_compute_stream_has_waited() -> None:
    schedule = in_parallel(parallel_tasks())
    held_bytes = live_bytes(schedule)
    by_task = [held_bytes[i] for i, item in enumerate(schedule.instructions) if isinstance(item, Compute)]
    assert by_task == [185, 290, 335, 305]  # the third task runs next to the second: 240 + 40 + 50 + 5
    assert schedule.peak_bytes == highest_bytes(schedule) == 335


def test_a_workspace_on_another_stream_is_taken_at_the_compute_stream_s_position() -> None:
    graph = parallel_tasks()
    only_workspace = replace(graph.tasks[1], reads=(), writes=(), creates=())
    builder = ScheduleBuilder("test", graph, budget_bytes=None)
    builder.compute(graph.tasks[0])
    builder.compute(only_workspace, stream="parallel")
    for task in graph.tasks[2:]:
        builder.compute(replace(task, reads=(FIRST,)))
    assert builder.finish().instructions[:3] == (Compute(0), Wait("parallel", 0), Compute(1, "parallel"))


def test_a_block_at_home_on_the_host_visits_and_leaves_without_a_copy(visited: TaskGraph) -> None:
    schedule = visiting(visited)
    validate(schedule)
    assert visited.external_bytes == 0
    assert visited.lower_bound_bytes == 100 + 80 + 5
    assert max(live_bytes(schedule)) == schedule.peak_bytes == 100 + 80 + 5
    assert live_bytes(schedule, frozenset({Role.INPUT}))[:2] == [100, 100]
    assert live_bytes(schedule)[-1] == 20  # only the result
    assert copied_bytes(schedule, Prefetch) == 100
    assert copied_bytes(schedule, Offload) == 0


def test_a_block_on_the_host_is_prefetched_before_it_is_read_and_never_offloaded(visited: TaskGraph) -> None:
    builder = ScheduleBuilder("test", visited, budget_bytes=None)
    with pytest.raises(UnsupportedStrategy, match="reads 'input', which is not resident"):
        builder.compute(visited.tasks[0])
    builder.prefetch(INPUT)
    with pytest.raises(UnsupportedStrategy, match="on the host already; a second copy would be wasted"):
        builder.offload(INPUT)
