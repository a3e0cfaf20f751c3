"""A plan as a schedule."""

from collections import defaultdict

from membench.core.schedule import Schedule
from membench.planning.builder import ScheduleBuilder
from membench.planning.choices.evaluation import Absence, Plan
from membench.planning.rewrites.recompute import reordered

COPY_BACK_STREAM = "copy back"


def emit(name: str, plan: Plan, budget_bytes: int | None) -> Schedule:
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
        for absence in leaves[position]:
            builder.free(absence.block)
        for absence in sorted(returns[position], key=lambda absence: absence.needed):
            builder.prefetch(absence.block, stream=COPY_BACK_STREAM)
        builder.compute(task)
        builder.free_dead()
        for absence in written[position]:
            if not builder.is_on_host(absence.block):
                builder.offload(absence.block)
    for absence in leaves[len(graph.tasks)]:
        builder.free(absence.block)
    return builder.finish()
