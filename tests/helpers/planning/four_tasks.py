"""A graph of four tasks without calls, for tests of the planning package, and two schedules of it."""

from dataclasses import replace

from membench.core.graph.schedule import COMPUTE_STREAM, Schedule
from membench.core.graph.task_graph import Block, HostLocation, Kind, Phase, Role, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import Pool
from membench.planning.region import Region

INPUT, FIRST, SECOND, GRADIENT, RESULT = range(5)


def four_tasks() -> TaskGraph:
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


def input_on_host() -> TaskGraph:
    """The graph of `four_tasks` with its input stored on the host."""
    graph = four_tasks()
    stored = replace(graph.blocks[INPUT], host_location=HostLocation(INPUT))
    return replace(graph, blocks=(stored, *graph.blocks[1:]))


def migrating(graph: TaskGraph, *, pool: Pool | None = None, region: Region | None = None) -> Schedule:
    """Offload the first activation while it is not needed."""
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


def parallel_tasks() -> TaskGraph:
    """The graph of `four_tasks` in which the second and the third task both read the first one's result, the last all.

    The second task has the largest workspace.
    """
    graph = four_tasks()
    first, second, third, last = graph.tasks
    second, third = replace(second, workspace_bytes=50), replace(third, reads=(FIRST,))
    return replace(graph, tasks=(first, second, third, replace(last, reads=(*last.reads, SECOND))))


def in_parallel(graph: TaskGraph) -> Schedule:
    """Run the second task on another stream."""
    builder = ScheduleBuilder("test", graph, budget_bytes=None)
    for task in graph.tasks:
        builder.compute(task, stream="parallel" if task.index == 1 else COMPUTE_STREAM)
    return builder.finish()


def visiting(graph: TaskGraph) -> Schedule:
    """Prefetch the input for the one task that reads it, and free it without a copy back."""
    builder = ScheduleBuilder("test", graph, budget_bytes=None)
    builder.prefetch(INPUT)
    for task in graph.tasks:
        builder.compute(task)
        builder.free_dead()
    return builder.finish()
