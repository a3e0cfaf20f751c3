"""A program and its copies as a schedule."""

from collections import defaultdict

from membench.core.schedule import Schedule
from membench.planning.builder import ScheduleBuilder
from membench.planning.recompute import reordered
from membench.strategies.joint.sequence import Program
from membench.strategies.joint.transfers import Absence, Transfers

COPY_BACK_STREAM = "copy back"


def emit(name: str, program: Program, transfers: Transfers, budget_bytes: int | None) -> Schedule:
    """Return the schedule; a copy out waits on its stream for no copy back, which has a stream of its own."""
    graph = reordered(program.problem.graph, program.order)
    builder = ScheduleBuilder(name, graph, budget_bytes=budget_bytes)
    written: defaultdict[int, list[Absence]] = defaultdict(list)
    leaves: defaultdict[int, list[Absence]] = defaultdict(list)
    returns: defaultdict[int, list[Absence]] = defaultdict(list)
    for absence in transfers.absences:
        assert absence.leaves is not None
        written[absence.written].append(absence)
        leaves[absence.leaves].append(absence)
        returns[absence.returns].append(absence)
    for position, task in enumerate(graph.tasks):
        for absence in leaves[position]:
            builder.free(absence.block)
        for absence in sorted(returns[position], key=lambda absence: absence.first):
            builder.prefetch(absence.block, stream=COPY_BACK_STREAM)
        builder.compute(task)
        builder.free_dead()
        for absence in written[position]:
            builder.offload(absence.block)
    return builder.finish()
