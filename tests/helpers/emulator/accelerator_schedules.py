"""Schedules that test the accelerators' backend: copies, tasks and codecs on streams, visiting blocks."""

from functools import cache
from itertools import pairwise

from membench.conformance.results import Reference
from membench.core.graph.schedule import Compute, Decode, Encode, Free, Schedule
from membench.core.graph.task_graph import EXTERNAL_ROLES, Phase, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.rewrite import keep_on_host
from membench.steps.plan import plan
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_networks import random_reference
from tests.helpers.steps.variants import VARIANTS

NETWORK = [("convolution", 0, 0), ("normalized", 1, 1), ("relu", 2, 2), ("dropout", 3, 1), ("relu", 4, 4)]


def case() -> Reference:
    return random_reference(NETWORK, seed=0)


@cache
def schedule_by(variant: str) -> Schedule:
    return plan(case().captured.graph, VARIANTS[variant], COST, None)


@cache
def copying() -> Schedule:
    """Return a schedule in which activations leave behind the next task and come back before the one that reads them.

    The host waits for nothing in it.
    """
    graph = case().captured.graph
    builder = ScheduleBuilder("copying", graph, budget_bytes=None)
    leaving: list[int] = []
    for task, following in pairwise((*graph.tasks, graph.tasks[-1])):
        for reader in (task, following):
            builder.prefetch_offloaded(reader.reads, stream="copy back")
        builder.compute(task)
        for block in leaving:
            builder.free(block)
        builder.free_dead()
        leaving = [
            block
            for block in task.creates
            if builder.is_resident(block)
            and graph.blocks[block].is_transient
            and graph.last_use[block] > following.index
            and block not in following.reads
        ]
        for block in leaving:
            builder.offload(block)
    return builder.finish()


@cache
def on_streams() -> Schedule:
    """Return a schedule with every third task of the forward pass on a stream, and codecs on another one."""
    encoding = schedule_by("gist")
    builder = ScheduleBuilder("on streams", encoding.graph, budget_bytes=None)
    for item in encoding.instructions:
        if isinstance(item, Compute):
            task = encoding.graph.tasks[item.task]
            is_aside = task.phase is Phase.FORWARD and task.index % 3 == 1
            builder.compute(task, stream="aside" if is_aside else None)
        elif isinstance(item, Encode):
            builder.encode(item.block, item.encoded, item.codec, stream="codec")
        elif isinstance(item, Decode):
            builder.decode(item.block, stream="codec")
        elif isinstance(item, Free):
            builder.free(item.block)
    return builder.finish()


SUMS = [
    ("add", 0, 0),
    ("add", 1, 1),
    ("add", 0, 0),
    ("add", 3, 2),
    ("add", 0, 0),
    ("add", 5, 4),
    ("add", 0, 0),
    ("add", 7, 6),
]


@cache
def sums_on_a_stream() -> Schedule:
    """Return a schedule in which tasks of another stream take memory that the compute stream has read last."""
    graph = random_reference(SUMS, seed=0).captured.graph
    [first] = graph.tasks[0].creates
    builder = ScheduleBuilder("sums", graph, budget_bytes=None)
    for task in graph.tasks:
        is_aside = task.phase is Phase.FORWARD and set(task.reads) == {first}
        builder.compute(task, stream="aside" if is_aside else None)
        builder.free_dead()
    return builder.finish()


def visiting(graph: TaskGraph) -> Schedule:
    """Prefetch every block of the caller for one task at a time."""
    graph = COST.annotate(keep_on_host(graph, EXTERNAL_ROLES))
    builder = ScheduleBuilder("visiting", graph, budget_bytes=None)
    for task in graph.tasks:
        visitors = [block for block in task.reads if graph.blocks[block].host_location]
        for block in visitors:
            builder.prefetch(block)
        builder.compute(task)
        for block in visitors:
            builder.free(block)
        builder.free_dead()
    return builder.finish()
