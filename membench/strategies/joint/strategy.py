"""Joint: keep, offload, recompute or encode each stored block, chosen together under a budget, with a lower bound on the time.

A step's time is that of its tasks, of what is computed again, and of waiting for copies. The method

1. solves a linear program that the schedules of a large class satisfy (`bound`): its value is a lower bound on their time,
2. takes from its solution, rounded, which ReLUs have masks, which index maps of pooling are stored in fewer bits, and which
   algorithm each convolution has (`variants`), compares some such variants of the graph, and adds or drops single encodings,
3. starts from the rounded solution and from offloading everything, and changes choices while that makes the step shorter
   (`search`); each set of choices is timed by planning its copies (`evaluation`): a copy to the host starts when its block
   is written, and the block's memory is given back when the copy has ended or memory is needed; a copy back takes memory as
   late as the link allows. Convolutions then get the fastest algorithms for which this leaves room,
4. asks the other lossless methods, the published planners included (`others`), unless its step is as short as the bound:
   their decisions are starting points of the search, and the fastest of all schedules is taken, so that it is never slower
   than any of them within the same budget (`checkmate` is asked on small graphs only),
5. states the bound (`lower_bound_s`) and by how much the step exceeds it (`gap`) in the schedule's decisions.

Where no plan keeps the budget with weights, accumulators and an optimizer's states on the device, these have their home in
host memory, and each stays on the device throughout or comes for its uses and leaves after them. The update runs on the
device. The bound is then that of the schedules that may do so; at larger budgets, of those that leave them on the device, so
that a smaller budget may take less time. With `offload_weights` such plans are made at every budget, the fastest of all is
taken, and the bound is always that of the larger class. It is not the default: a real step that updates its weights, or is
wrapped, needs them on the device.

Without a budget the step takes the time of the fastest algorithms, which is eager's where the device offers no choice, with the
least memory found that costs no time. Masks and narrow index maps are written by PyTorch's operators, a byte and two or four
bytes for each element; Gist's bits are finer, and its schedule is one of those under 4. Not its codec for sparse maps, whose
size depends on the data.

Ours; related are POFO (Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021) and Capuchin (Peng et al., ASPLOS 2020), which choose
between the same means by other rules.
"""

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from membench.core.cost_model import CostModel
from membench.core.schedule import Schedule
from membench.core.task_graph import Role, TaskGraph
from membench.execution.simulation import step_time_s
from membench.planning.rewrite import keep_on_host
from membench.strategies.base import Strategy

if TYPE_CHECKING:
    from membench.strategies.joint.others import Others, Timed
    from membench.strategies.joint.planner import Planner

OF_WEIGHTS = frozenset({Role.WEIGHT, Role.ACCUMULATED, Role.OPTIMIZER_STATE})
"""What can have its home in host memory."""

SMALLEST_HOME = 1 / 256
"""Blocks smaller than this share of the largest one of them stay on the device."""


class Joint(Strategy):
    """Keep, offload or recompute each stored block, chosen together under a budget; states a lower bound on the time.

    Args:
        offload_weights: under a budget weights, and what the step updates for them, may be kept on the host wherever that
            makes the step faster; otherwise only where no other plan keeps the budget.
    """

    name = "joint"
    searches_under_budget = True

    def __init__(self, offload_weights: bool = False) -> None:
        self._offload_weights = offload_weights

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        # numba and scipy take a second to import, which no other strategy needs
        from membench.planning.choices.emit import emit
        from membench.strategies.joint.others import Others
        from membench.strategies.joint.planner import Planner
        from membench.strategies.joint.search import TOLERANCE

        planner = Planner(graph, cost)
        if budget_bytes is None:
            least = emit(self.name, planner.without_loss_of_time(), None)
            return _certified(least, step_time_s(least, cost), planner.compute_s)
        can_keep = planner.can_keep(budget_bytes)
        others = Others(graph, cost, budget_bytes, can_keep=can_keep)
        candidates: list[Timed] = []
        if can_keep:
            candidates += self._of_planner(planner, others)
            step_s = candidates[0][0] if candidates else inf
            if step_s > planner.lower_bound_s(budget_bytes, step_s) * (1 + TOLERANCE):
                candidates += others.timed(step_s)  # otherwise none of them is faster
        fastest_s = min((step_s for step_s, _ in candidates), default=inf)
        may_leave = self._offload_weights and fastest_s > planner.compute_s * (1 + TOLERANCE)
        if may_leave or not candidates:
            planner = Planner(with_homes(graph), cost)  # its bound holds for the plans above as well
            candidates += self._of_planner(planner, others)
        if not candidates:
            raise planner.refusal(budget_bytes)
        step_s, fastest = min(candidates, key=lambda candidate: (candidate[0], candidate[1].peak_bytes))
        fastest = replace(fastest, strategy=self.name)
        return _certified(fastest, step_s, planner.lower_bound_s(budget_bytes, step_s))

    def _of_planner(self, planner: "Planner", others: "Others") -> "list[Timed]":
        from membench.planning.choices.emit import emit

        plan = planner.within(others.budget_bytes, others)
        return [others.timed_of(emit(self.name, plan, others.budget_bytes))] if plan else []


def with_homes(graph: TaskGraph) -> TaskGraph:
    """Return the graph with weights, accumulators and an optimizer's states in host memory, but for small ones."""
    sizes = (block.size_bytes for block in graph.blocks if block.role in OF_WEIGHTS)
    least_bytes = int(max(sizes, default=0) * SMALLEST_HOME)
    return keep_on_host(graph, OF_WEIGHTS, updated=True, least_bytes=least_bytes)


def _certified(schedule: Schedule, step_s: float, lower_bound_s: float) -> Schedule:
    """Return the schedule with the lower bound among its decisions, and by how much the step exceeds it."""
    gap = step_s / lower_bound_s - 1 if lower_bound_s else 0.0
    return replace(schedule, decisions=(("lower_bound_s", lower_bound_s), ("gap", max(0.0, gap))))
