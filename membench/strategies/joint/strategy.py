"""Joint: keep, offload, recompute or encode each stored block under a budget, with a lower bound on time.

A step's time is that of its tasks, of what is computed again, and of waiting for copies. The method

1. solves a linear program that the schedules of a large class satisfy (`bound`): its value is a lower bound on their
   time,
2. takes from its solution, rounded, which ReLUs have masks, which index maps of pooling are stored in fewer bits, and
   which algorithm each convolution has (`variants`), compares some such variants of the graph, where memory lacks also
   one with all encodings and each gradient of a convolution by itself, and adds or drops single encodings,
3. starts from the rounded solution and from offloading everything, and changes choices while that makes the step
   shorter (`search`); each set of choices is timed by planning its copies (`evaluation`): a copy to the host starts
   when its block is written, and the block's memory is given back when the copy has ended or memory is needed; a copy
   back takes memory as late as the link allows. Convolutions then get the fastest algorithms for which this leaves
   room,
4. asks the other lossless methods, the published planners included (`others`), unless its step is as short as the
   bound: their decisions are starting points of the search, and the fastest of all schedules is taken, so that it is
   never slower than any of them within the same budget (`checkmate` is asked on small graphs only),
5. states the bound (`lower_bound_s`) and by how much the step exceeds it (`gap`) in the schedule's decisions.

Under a budget weights, with their gradients and an optimizer's states, may also have their home in host memory, where
the host updates them (`homes`): their weights come for their uses, and their gradients leave. Such plans are made
wherever the others take longer than the tasks. The number of layers at home is the fastest one of a short search, which
starts at that of the linear program; the bound is then that of the schedules that may do so. Where it is lower than
that of plans with all weights on the device, they are made first, and others only if their bound is below the fastest
of them. With `defers_updates` the best of them is also timed with shares of its updates beside the next step's forward
pass (`planning.rewrites.deferred`), and the bound is that of steps that may do so. Micro-batches are computed layer by
layer where that is faster, so that such weights come once for all (`planning.rewrites.layer_by_layer`).

Under sharded weights a rank's gathered weights are stored blocks as well: they stay from the forward to the backward
pass, or are gathered again ahead of their use, which takes the time of a collective (`planning.parallel.gathering`).
The bound contains collectives (`windows`), and the program's own schedule is among those under 4.

Without a budget the step takes the time of the fastest algorithms, which is eager's where the device offers no choice,
with the least memory found that costs no time. Masks and narrow index maps are written by PyTorch's operators, a byte
and two or four bytes for each element; Gist's bits are finer, and its schedule is one of those under 4. Not its codec
for sparse maps, whose size depends on the data.

Ours; related are POFO (Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021) and Capuchin (Peng et al., ASPLOS 2020), which
choose between the same means by other rules.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import ceil, inf
from typing import TYPE_CHECKING

from membench.core.checks import SWITCH, check
from membench.core.errors import InfeasibleSchedule, UnsupportedStrategy
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.execution.simulation import step_time_s
from membench.planning.parallel.gathering import gathered_once
from membench.strategies.base import Strategy

if TYPE_CHECKING:
    from membench.planning.choices.evaluation import EvaluatedChoices
    from membench.strategies.joint.homes import Homes
    from membench.strategies.joint.others import Others, Timed
    from membench.strategies.joint.planner import Planner

STRIDES, HALVINGS = 4, 2
"""In which numbers of updates on the host are tried, from the least to all of them, and how often these are halved."""

DEFERRED_SHARES = (0.15, 0.3, 0.45, 0.6, 0.75, 1.0)
"""Of the weights that the host updates: those whose update is tried beside the next step's forward pass."""

WORTH_WHILE = 1.005
"""The fastest plan so far over the bound of another class of schedules: where it is less, that one is not searched."""

FEW_MOMENTS = 100
"""Number of moments in a bound that only decides which plans are searched, and from where.

It takes a fifth of the time, and is lower by up to 0.3 % for a Llama of 7 billion weights.
"""


class Joint(Strategy):
    """Keep, offload or recompute stored blocks, chosen together under a budget; state a lower bound on the time.

    Args:
        defers_updates: updates on the host may run beside the next step's forward pass. Weights that they change are
            then empty between two steps that run, until the step's `restore`.
    """

    name = "joint"
    layer_by_layer = None
    searches_under_budget = True
    moves_weights = True

    def __init__(self, defers_updates: bool = False) -> None:
        check(SWITCH, defers_updates=defers_updates)
        self._defers = defers_updates

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        # numba and scipy take a second to import, which no other strategy needs
        from membench.strategies.joint.homes import Homes
        from membench.strategies.joint.others import Others
        from membench.strategies.joint.planner import Planner
        from membench.strategies.joint.search import TOLERANCE

        once = gathered_once(graph)
        planner = Planner(once, cost)
        if budget_bytes is None:
            least = self._emitted(planner.without_loss_of_time(), None)
            return _certified(least, step_time_s(least, cost), planner.compute_s)
        stays_s = planner.least_s(budget_bytes, FEW_MOMENTS)
        homes, others = Homes(once, cost), Others(graph, cost, budget_bytes, stays_s)
        at_home = cache(lambda defers: Planner(homes.at(len(homes.parts)), cost, homes.residences, defers=defers))
        by_bound = at_home(self._defers)  # which holds for all plans
        candidates: list[Timed] = []
        leaves_first = (
            stays_s > planner.compute_s * (1 + TOLERANCE) and stays_s > by_bound.least_s(budget_bytes) * WORTH_WHILE
        )
        if stays_s < inf and not leaves_first:
            candidates += self._of_planner(planner, others)
        if _fastest_s(candidates) > planner.compute_s * (1 + TOLERANCE):
            for defers in dict.fromkeys((False, self._defers)):
                candidates += self._with_homes(homes, at_home(defers), others)
            if leaves_first and _fastest_s(candidates) > stays_s * (1 + TOLERANCE):
                candidates += self._of_planner(planner, others)
            planner = by_bound
            if _fastest_s(candidates) > planner.least_s(budget_bytes) * (1 + TOLERANCE) or not candidates:
                candidates += others.timed(_fastest_s(candidates))  # otherwise none of them is faster
                candidates += others.own()
        if not candidates:
            raise planner.refusal(budget_bytes)
        step_s, fastest = min(candidates, key=lambda candidate: (candidate[0], candidate[1].peak_bytes))
        return _certified(replace(fastest, strategy=self.name), step_s, planner.least_s(budget_bytes))

    def _with_homes(self, homes: "Homes", planner: "Planner", others: "Others") -> "list[Timed]":
        """Return the best plan found with some updates on the host.

        Args:
            planner: the planner of all updates on the host, at whose linear program's number the search starts; it
                tells whether updates may be deferred.
        """
        from membench.strategies.joint.planner import Planner

        count, budget_bytes = len(homes.parts), others.budget_bytes
        if planner.least_s(budget_bytes) == inf:
            return []
        planner_of = cache(lambda number: Planner(homes.at(number), homes.cost, defers=planner.defers))

        def step_s(number: int, lowest_s: float) -> float:
            planner = planner_of(number)
            is_worse = planner.least_s(budget_bytes, FEW_MOMENTS) * WORTH_WHILE >= lowest_s
            begun = None if is_worse else planner.begun(budget_bytes, FEW_MOMENTS)
            if begun is None or begun.search.best is None:
                return inf
            deferred = self._deferred(begun.search.best, budget_bytes) if planner.defers else ()
            return min([begun.step_s, *(others.timed_of(each)[0] for each in deferred)])

        is_rank = any(task.collective for task in homes.graph.tasks)
        first = 0 if is_rank else ceil(planner.moved(budget_bytes))
        least = _least(range(first, count), lambda number: planner_of(number).needed_bytes <= budget_bytes)
        return self._of_planner(planner_of(_lowest(range(least, count + 1), step_s)), others)

    def _of_planner(self, planner: "Planner", others: "Others") -> "list[Timed]":
        begun = planner.begun(others.budget_bytes)
        if begun is None:
            return []
        plan, budget_bytes = planner.finished(begun, others), others.budget_bytes
        deferred = self._deferred(plan, budget_bytes) if self._defers else ()
        return [*map(others.timed_of, (self._emitted(plan, budget_bytes), *deferred))]

    def _emitted(self, plan: "EvaluatedChoices", budget_bytes: int | None) -> Schedule:
        from membench.planning.choices.emit import emit

        return emit(self.name, plan, budget_bytes)

    def _deferred(self, plan: "EvaluatedChoices", budget_bytes: int) -> Iterator[Schedule]:
        """Yield a plan's schedules with some of its updates beside the next step's forward pass."""
        from membench.planning.choices.emit import emit

        for share in DEFERRED_SHARES if plan.problem.host_s else ():
            with suppress(InfeasibleSchedule, UnsupportedStrategy):
                yield emit(self.name, plan, budget_bytes, deferred_share=share)


def _least(numbers: range, holds: Callable[[int], bool]) -> int:
    """Return the first number from which on a condition holds for all that follow, or the end of their range.

    The condition is asked for few of them where the first one is near their start.
    """
    width = 1
    while width < len(numbers) and not holds(numbers[width - 1]):
        width *= 2
    near = numbers[width // 2 : width]
    return near.start + bisect_left(near, True, key=holds)


def _lowest(numbers: range, value: Callable[[int, float], float]) -> int:
    """Return a number of a low value: the lowest of a few in equal strides, then of those beside it, in half of these.

    Args:
        value: returns a number's value, or infinity where that is not below its second argument.
    """
    stride = ceil(len(numbers) / STRIDES)
    best, lowest, near = numbers[0], inf, sorted({*numbers[::stride], numbers[-1]})
    if len(numbers) == 1:
        return best
    for _ in range(HALVINGS + 1):
        for number in near:
            if (found := value(number, lowest)) < lowest:
                best, lowest = number, found
        stride = ceil(stride / 2)
        near = [number for number in (best - stride, best + stride) if number in numbers]
    return best


def _fastest_s(candidates: "list[Timed]") -> float:
    return min((step_s for step_s, _ in candidates), default=inf)


def _certified(schedule: Schedule, step_s: float, least_s: float) -> Schedule:
    """Return the schedule with the lower bound among its decisions, and by how much the step exceeds it."""
    lower_bound_s = min(step_s, least_s)
    gap = step_s / lower_bound_s - 1 if lower_bound_s else 0.0
    return replace(schedule, decisions=(("lower_bound_s", lower_bound_s), ("gap", max(0.0, gap))))
