"""Capuchin: swap where the time between accesses hides both copies, recompute others by bytes per second.

Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS 2020. One measured step gives the
times of all accesses. Where memory does not suffice, tensors are evicted in this order until it does (Section 4.4):

- Swaps whose free time is not negative, the longest first: the time from the access after which a tensor is evicted to
  the next one, less both copies (Equation 1).
- Then what has the least overhead: recomputation, where a tensor's overhead is the time to compute it again, in the
  order of saved bytes per second (MSPS, Equation 2); or a swap, where it is the part of the copies that is not hidden.

Readings. A tensor's next access is its first of the backward pass. Time is the cost model's, not measured in a first
step of its own; a tensor whose inputs are evicted is charged for the ones that are recomputed as well, and what depends
on it is charged anew once it is chosen (Algorithm 1). In-triggers and out-triggers, which the paper adjusts by feedback
from step to step, are where `planning.choices` puts them: a copy out starts when a tensor is written, and a copy back
as late as the link allows. A tensor that is recomputed stays until its last use (collective recomputation, Section
4.4).

Left out: tensors leave on access in the first, passive step, which no schedule contains. Not SuperNeurons, which goes
by the kinds of layers; not `joint`, which compares whole steps.
"""

from math import inf

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, Problem
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy


class Capuchin(Strategy):
    """Capuchin: swap what can be hidden, recompute by saved bytes per second (Peng et al. 2020, Section 4.4)."""

    name = "capuchin"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        # numba takes a second to import
        from membench.planning.choices.emit import emit
        from membench.planning.choices.evaluation import Evaluator

        problem = Problem(join_convolution_backward(graph, cost), cost, 1)
        evaluator = Evaluator(problem)
        choices = [KEEP] * len(problem.units)
        limit_bytes = evaluator.needed_bytes(choices)[0] if budget_bytes is None else budget_bytes
        plan = evaluator.plan(choices, limit_bytes)
        evictions = Evictions(problem)
        while plan.step_s == inf and (chosen := evictions.next()):
            unit, is_swapped = chosen
            choices[unit] = OFFLOAD if is_swapped else RECOMPUTE
            plan = evaluator.plan(choices, limit_bytes)
        if plan.step_s == inf:
            raise evaluator.refusal(choices, limit_bytes)
        return emit(self.name, plan, budget_bytes)


class Evictions:
    """The order in which tensors are evicted.

    Args:
        problem: with all tensors, the smallest as well.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._left = [n for n, unit in enumerate(problem.units) if unit.stored]
        self._recomputed: set[int] = set()
        self._free_s = self._free_times_s()

    def next(self) -> tuple[int, bool] | None:
        """Return the next unit, and whether it is swapped; None where nothing is left."""
        if not self._left:
            return None
        hidden = [n for n in self._left if self._free_s[n] >= 0]
        if hidden:
            return self._take(max(hidden, key=lambda n: (self._free_s[n], -n)), is_swapped=True)
        repeatable = [n for n in self._left if self._problem.units[n].makers]
        if repeatable:
            best = max(repeatable, key=lambda n: (self._problem.units[n].size_bytes / self._remake_s(n), -n))
            if self._remake_s(best) <= -self._free_s[best]:
                return self._take(best, is_swapped=False)
        return self._take(max(self._left, key=lambda n: (self._free_s[n], -n)), is_swapped=True)

    def _take(self, unit: int, *, is_swapped: bool) -> tuple[int, bool]:
        self._left.remove(unit)
        if not is_swapped:
            self._recomputed.add(unit)
        return unit, is_swapped

    def _remake_s(self, unit: int) -> float:
        """Return the seconds to compute a unit again, with those of its inputs that are recomputed as well."""
        problem, seconds = self._problem, 0.0
        needed, seen = [unit], {unit}
        while needed:
            current = needed.pop()
            seconds += problem.units[current].remake_s
            inputs = {problem.unit_of[block] for block in problem.units[current].inputs} & self._recomputed
            needed += inputs - seen
            seen |= inputs
        return max(seconds, 1e-12)

    def _free_times_s(self) -> dict[int, float]:
        """Return the time between a unit's last forward and first backward access, less both copies."""
        problem = self._problem
        clock_s = [0.0]
        last, first = dict[int, int](), dict[int, int]()
        for task in problem.graph.tasks:
            clock_s.append(clock_s[-1] + problem.duration_s[task.index])
            for block in problem.touched[task.index]:
                if task.index < problem.turn:
                    last[block] = task.index
                else:
                    first.setdefault(block, task.index)
        found = {}
        for number in self._left:
            blocks = problem.units[number].blocks
            start = max(last[block] for block in blocks)
            end = min(first[block] for block in blocks if block in first)
            copies_s = sum(problem.offload_s[block] + problem.prefetch_s[block] for block in blocks)
            found[number] = clock_s[end] - clock_s[start + 1] - copies_s
        return found
