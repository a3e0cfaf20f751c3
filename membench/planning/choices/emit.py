"""A plan as a schedule."""

from collections import defaultdict
from collections.abc import Iterable

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Task
from membench.planning.builder import ScheduleBuilder
from membench.planning.choices.evaluation import Absence, EvaluatedChoices
from membench.planning.rewrites.deferred import defer_updates, deferred_updates
from membench.planning.rewrites.recompute import reordered

COPY_BACK_STREAM = "copy back"


def emit(name: str, plan: EvaluatedChoices, budget_bytes: int | None, *, deferred_share: float = 0.0) -> Schedule:
    """Return the schedule; copies back have a stream of their own, so that they wait for no copy out.

    Args:
        deferred_share: share of the weights that the host updates whose update runs in the next step, each before its
            weights come to the device; see `defer_updates`.

    Raises:
        UnsupportedStrategy: see `defer_updates`.
    """
    planned = reordered(plan.graph(), plan.order())
    graph = defer_updates(planned, deferred_share)
    builder = ScheduleBuilder(name, graph, budget_bytes=budget_bytes)
    deferred = deferred_updates(graph)
    due = {block: task for task in reversed(deferred) for block in task.writes}
    names = {task.name for task in deferred}
    tasks = iter(task for task in graph.tasks if task.name not in names)
    written: defaultdict[int, list[Absence]] = defaultdict(list)
    leaves: defaultdict[int, list[Absence]] = defaultdict(list)
    returns: defaultdict[int, list[Absence]] = defaultdict(list)
    for absence in plan.gone():
        written[absence.written].append(absence)
        if absence.leaves is not None:
            leaves[absence.leaves].append(absence)
        returns[absence.returns].append(absence)
    for position, task in enumerate(planned.tasks):
        _leave(builder, leaves[position])
        for absence in sorted(returns[position], key=lambda absence: absence.needed):
            _update(builder, due, absence.block)
            builder.prefetch(absence.block, stream=COPY_BACK_STREAM)
        if task.name in names:
            continue
        for block in task.reads:
            _update(builder, due, block)
        builder.compute(next(tasks))
        builder.free_dead()
        for absence in written[position]:
            if not builder.is_on_host(absence.block):
                builder.offload(absence.block)
    _leave(builder, leaves[len(planned.tasks)])
    return builder.finish()


def _update(builder: ScheduleBuilder, due: dict[int, Task], block: int) -> None:
    """Run the deferred update that writes a block, if it has not been run."""
    if task := due.get(block):
        builder.compute(task)
        for written in task.writes:
            due.pop(written, None)


def _leave(builder: ScheduleBuilder, absences: Iterable[Absence]) -> None:
    """Free the blocks of absences; one that the host has read before its last use was given back with that."""
    for absence in absences:
        if builder.is_resident(absence.block):
            builder.free(absence.block)
