"""What a strategy plans, without running it: copies, budgets and repetition."""

import pickle
from contextlib import suppress

from membench.conformance.results import BrokenContract, require
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Offload, Prefetch, Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import copied_bytes, live_bytes
from membench.steps.plan import plan
from membench.strategies.base import Strategy


def check_copies(schedule: Schedule) -> None:
    """Check that nothing is copied out twice, and that all of it comes back.

    Some of it comes back twice: for the forward pass and for the backward pass. Weights in host memory do not change
    without an update.

    Raises:
        BrokenContract: they are not.
    """
    out = [i.block for i in schedule.instructions if isinstance(i, Offload)]
    back = {i.block for i in schedule.instructions if isinstance(i, Prefetch)}
    at_home = {block.index for block in schedule.graph.blocks if block.host_location}
    require(len(out) == len(set(out)), "a block is copied to the host twice")
    require(set(out) == back - at_home, "what is copied to the host is not what comes back")
    size_bytes = sum(schedule.graph.blocks[block].size_bytes for block in set(out))
    require(copied_bytes(schedule, Offload) == size_bytes, "the bytes of the copies are not those of their blocks")


def check_repeats(graph: TaskGraph, strategy: Strategy, cost: CostModel, schedule: Schedule) -> None:
    """Check that a strategy plans this schedule again, and that it can be pickled and printed.

    Raises:
        BrokenContract: it does not; see also `validate`.
    """
    require(plan(graph, strategy, cost, None) == schedule, "the strategy plans another schedule the second time")
    copy = pickle.loads(pickle.dumps(schedule))
    require(copy == schedule, "the schedule is another one after it was pickled")
    validate(copy)
    header = 1 + bool(schedule.reason) + bool(schedule.note) + bool(schedule.certificate)
    require(len(str(schedule).splitlines()) == header + len(schedule), "an instruction prints as more than a line")


def check_budget(
    graph: TaskGraph, strategy: Strategy, cost: CostModel, unlimited: Schedule, *, moves_weights: bool
) -> None:
    """Check that a strategy keeps a budget or refuses it, and what its refusal states.

    Args:
        unlimited: its schedule without a budget.
        moves_weights: whether weights may leave for the host where nothing else is enough.

    Raises:
        BrokenContract: it exceeds one, or states other bytes.
    """
    peak_bytes = unlimited.peak_bytes
    schedule = plan(graph, strategy, cost, peak_bytes)
    require(
        max(live_bytes(schedule)) == schedule.peak_bytes <= peak_bytes,
        f"the budget of {peak_bytes:,} bytes is exceeded",
    )
    if not strategy.plans_for_budgets:
        require(schedule == unlimited, "the schedule depends on the budget, and plans_for_budgets is False")
        _refused(graph, strategy, cost, peak_bytes - 1)
    with suppress(InfeasibleSchedule):  # a method may find a schedule that needs less
        less = plan(graph, strategy, cost, peak_bytes - 1)
        require(less.peak_bytes < peak_bytes, f"the budget of {peak_bytes - 1:,} bytes is exceeded")
    lower_bound_bytes = schedule.graph.lower_bound_bytes
    if moves_weights:
        with suppress(InfeasibleSchedule):
            less = plan(graph, strategy, cost, lower_bound_bytes - 1)
            require(less.graph.external_bytes < schedule.graph.external_bytes, "a plan needs less than the lower bound")
        # the refusal's bound is the tighter one; where times are close, the schedule is another method's, with weights
        # at home
        least_bytes, refused_bytes, most_bytes = 1, 1, peak_bytes
    else:
        least_bytes, refused_bytes, most_bytes = graph.external_bytes, lower_bound_bytes - 1, lower_bound_bytes
    refusal = _refused(graph, strategy, cost, refused_bytes)
    # less where the method would choose a form of the graph that needs less
    require(
        least_bytes < refusal.lower_bound_bytes <= most_bytes
        and refusal.lower_bound_bytes <= refusal.needed_bytes <= peak_bytes,
        f"a refusal states a lower bound of {refusal.lower_bound_bytes:,} bytes and {refusal.needed_bytes:,} needed; "
        f"{lower_bound_bytes:,} and at most {peak_bytes:,} are",
    )


def _refused(graph: TaskGraph, strategy: Strategy, cost: CostModel, budget_bytes: int) -> InfeasibleSchedule:
    try:
        plan(graph, strategy, cost, budget_bytes)
    except InfeasibleSchedule as refusal:
        return refusal
    raise BrokenContract(f"a budget of {budget_bytes:,} bytes is not refused")
