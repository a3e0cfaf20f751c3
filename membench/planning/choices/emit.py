"""A plan as a schedule."""

from collections import defaultdict
from collections.abc import Iterable

from membench.core.graph.schedule import Schedule
from membench.planning.builder import ScheduleBuilder
from membench.planning.choices.evaluation import Absence, EvaluatedChoices
from membench.planning.rewrites.recompute import reordered

COPY_BACK_STREAM = "copy back"


def emit(name: str, plan: EvaluatedChoices, budget_bytes: int | None) -> Schedule:
    """Return the schedule; copies back have a stream of their own, so that they wait for no copy out."""
    graph = reordered(plan.graph(), plan.order())
    builder = ScheduleBuilder(name, graph, budget_bytes=budget_bytes)
    written: defaultdict[int, list[Absence]] = defaultdict(list)
    leaves: defaultdict[int, list[Absence]] = defaultdict(list)
    returns: defaultdict[int, list[Absence]] = defaultdict(list)
    for absence in plan.gone():
        written[absence.written].append(absence)
        if absence.leaves is not None:
            leaves[absence.leaves].append(absence)
        returns[absence.returns].append(absence)
    for position, task in enumerate(graph.tasks):
        _leave(builder, leaves[position])
        for absence in sorted(returns[position], key=lambda absence: absence.needed):
            builder.prefetch(absence.block, stream=COPY_BACK_STREAM)
        builder.compute(task)
        builder.free_dead()
        for absence in written[position]:
            if not builder.is_on_host(absence.block):
                builder.offload(absence.block)
    _leave(builder, leaves[len(graph.tasks)])
    return builder.finish()


def _leave(builder: ScheduleBuilder, absences: Iterable[Absence]) -> None:
    """Free the blocks of absences; one that the host has read before its last use was given back with that."""
    for absence in absences:
        if builder.is_resident(absence.block):
            builder.free(absence.block)
