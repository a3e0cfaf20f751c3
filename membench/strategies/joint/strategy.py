"""Joint: for each stored block keep, offload or recompute, chosen together under a budget, with a lower bound on the time.

A step's time is that of its tasks, of what is computed again, and of waiting for copies. The method

1. solves a linear program that the schedules of a large class satisfy (`bound`): its value is a lower bound on their time,
2. starts from its rounded solution and from offloading everything, and changes choices while that makes the step shorter
   (`search`); each set of choices is timed by planning its copies (`evaluation`): a copy to the host starts when its block
   is written, and the block's memory is given back when the copy has ended or memory is needed; a copy back takes memory as
   late as the link allows,
3. asks the other lossless methods, the published planners included (`others`), unless its step is as short as the bound:
   their decisions are starting points of the search, and the fastest of all schedules is taken, so that it is never slower
   than any of them within the same budget,
4. states the bound (`lower_bound_s`) and by how much the step exceeds it (`gap`) in the schedule's decisions.

Without a budget the step takes as long as eager's, with the least memory found that costs no time. Convolutions keep the
algorithm that they have; the bound is of the fastest ones, so that it holds for methods that choose.

Ours; related are POFO (Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021) and Capuchin (Peng et al., ASPLOS 2020), which choose
between the same means by other rules.
"""

from dataclasses import replace

from membench.core.cost_model import CostModel
from membench.core.schedule import Schedule
from membench.core.task_graph import TaskGraph
from membench.strategies.base import Strategy


class Joint(Strategy):
    """Keep, offload or recompute each stored block, chosen together under a budget; states a lower bound on the time."""

    name = "joint"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        # numba and scipy take a second to import, which no other strategy needs
        from membench.planning.choices.emit import emit
        from membench.strategies.joint.others import Others, step_time_s
        from membench.strategies.joint.planner import Planner
        from membench.strategies.joint.search import TOLERANCE

        planner = Planner(graph, cost)
        if budget_bytes is None:
            least = emit(self.name, planner.without_loss_of_time(), None)
            return _certified(least, step_time_s(least, cost), planner.compute_s)
        others = Others(graph, cost, budget_bytes)
        plan = planner.within(budget_bytes, others)
        candidates = []
        if plan:
            ours = emit(self.name, plan, budget_bytes)
            ours_s = step_time_s(ours, cost)
            candidates.append((ours_s, ours))
        if not plan or ours_s > planner.lower_bound_s(budget_bytes, ours_s) * (1 + TOLERANCE):
            candidates += others.timed  # none of them is faster than the bound
        if not candidates:
            raise planner.refusal(budget_bytes)
        step_s, fastest = min(candidates, key=lambda candidate: (candidate[0], candidate[1].peak_bytes))
        return _certified(
            replace(fastest, strategy=self.name), step_s, planner.lower_bound_s(budget_bytes, step_s)
        )


def _certified(schedule: Schedule, step_s: float, lower_bound_s: float) -> Schedule:
    """Return the schedule with the lower bound among its decisions, and by how much the step exceeds it."""
    gap = step_s / lower_bound_s - 1 if lower_bound_s else 0.0
    return replace(schedule, decisions=(("lower_bound_s", lower_bound_s), ("gap", max(0.0, gap))))
