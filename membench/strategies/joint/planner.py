"""The plans of one graph: the best within a budget, the one that needs least without losing time, and bounds."""

from collections.abc import Callable, Iterator
from functools import cache

from membench.core.cost_model import CostModel
from membench.core.errors import InfeasibleSchedule
from membench.core.task_graph import Task, TaskGraph
from membench.planning.choices.evaluation import Evaluator, Plan
from membench.planning.choices.problem import KEEP, OFFLOAD, Problem, large_bytes
from membench.planning.rewrite import join_convolution_backward, mask_relu
from membench.strategies.joint.bound import Relaxation, relax
from membench.strategies.joint.search import TOLERANCE, Search, seeds

EVALUATIONS = range(1000, 16_001)
"""Least and greatest number of plans that are tried."""

EVALUATED_STEPS = 20_000_000
"""Number of tasks of all plans that are tried, where that is between the two numbers."""

ENOUGH = 1.0005
"""The search ends at this multiple of the lower bound."""

HALVINGS = 12
"""Number of budgets that are tried where none is given."""

TRIALS = 500
"""Number of plans that are tried for each of these budgets."""


class Planner:
    """Plans of a graph in its variants: as eager runs it; with two tasks for a convolution's gradients; with masks of ReLUs."""

    def __init__(self, graph: TaskGraph, cost: CostModel) -> None:
        variants = (join_convolution_backward(graph, cost), graph, mask_relu(graph, cost))
        self._problems = [_problem(variant, cost) for variant in variants]
        self._bounding = self._problems
        if any(len(cost.algorithms(task)) > 1 for task in graph.tasks):  # other methods may run faster ones

            def fastest_s(task: Task) -> float:
                return min(cost.task_time_s(task), *(each.time_s for each in cost.algorithms(task)))

            self._bounding = [_problem(variant, cost, fastest_s) for variant in variants]
        self._relaxed = cache(relax)

    def within(self, budget_bytes: int) -> Iterator[Plan]:
        """Yield the best plan of the first variant with which one keeps the budget."""
        for problem in self._problems:
            relaxed = self._relaxed(problem, budget_bytes)
            if relaxed and (plan := _search(problem, relaxed, budget_bytes)):
                yield plan
                return

    def lower_bound_s(self, budget_bytes: int, step_s: float) -> float:
        """Return a lower bound on the time of a step of any variant within a budget, given the time of one."""
        bounds = [step_s]
        for problem in self._bounding:
            if problem.compute_s < min(bounds) and (relaxed := self._relaxed(problem, budget_bytes)):
                bounds.append(relaxed.step_s)
        return min(bounds)

    def without_loss_of_time(self) -> Plan:
        """Return the plan with the least budget found at which no copy is waited for."""
        problem = self._problems[0]
        evaluator = Evaluator(problem)
        everything = [OFFLOAD] * len(problem.units)
        least, most = (
            evaluator.needed_bytes(everything)[0],
            evaluator.needed_bytes([KEEP] * len(problem.units))[0],
        )
        best = evaluator.plan([KEEP] * len(problem.units), most)
        for _ in range(HALVINGS):
            middle = (least + most) // 2
            search = Search(evaluator, middle, evaluations=TRIALS, enough_s=problem.compute_s)
            search.try_choices(everything)
            if search.best:
                search.descend()
            if search.best and search.best.step_s <= problem.compute_s * (1 + TOLERANCE):
                best, most = search.best, min(search.best.peak_bytes, middle)
            else:
                least = middle
        return best

    @property
    def compute_s(self) -> float:
        """The least seconds of all tasks, each once, in any variant."""
        return min(problem.compute_s for problem in self._bounding)

    def refusal(self, budget_bytes: int) -> InfeasibleSchedule:
        """Return the error for a budget that no plan keeps, with the least that one needs."""
        needs = []
        for problem in self._problems:
            needed_bytes, operation = Evaluator(problem).needed_bytes([OFFLOAD] * len(problem.units))
            needs.append((needed_bytes, problem.operations[operation].name))
        needed_bytes, task = min(needs)
        return InfeasibleSchedule(
            task=task,
            needed_bytes=needed_bytes,
            budget_bytes=budget_bytes,
            lower_bound_bytes=min(problem.graph.lower_bound_bytes for problem in self._problems),
        )


def _problem(graph: TaskGraph, cost: CostModel, time_s: Callable[[Task], float] | None = None) -> Problem:
    return Problem(graph, cost, large_bytes(graph), time_s)


def _search(problem: Problem, relaxed: Relaxation, budget_bytes: int) -> Plan | None:
    wanted = EVALUATED_STEPS // max(1, len(problem.graph.tasks))
    evaluations = min(max(wanted, EVALUATIONS.start), EVALUATIONS.stop - 1)
    search = Search(
        Evaluator(problem), budget_bytes, evaluations=evaluations, enough_s=relaxed.step_s * ENOUGH
    )
    for choices in seeds(len(problem.units), relaxed.offloaded, relaxed.recomputed):
        if not search.is_over:
            search.try_choices(choices)
    if search.best:
        search.descend()
        search.anneal()
    return search.best
