"""Joint: for each stored block keep, offload or recompute, chosen together under a budget, with a lower bound on the time.

A step's time is that of its tasks, of what is computed again, and of waiting for copies. The method

1. solves a linear program that every schedule within the budget satisfies (`bound`): its value is a lower bound on the time,
2. starts from its rounded solution and from offloading everything, and changes choices while that makes the step shorter
   (`search`); each set of choices is timed by planning its copies (`transfers`): a copy to the host starts when its block is
   written, and the block's memory is given back when the copy has ended or memory is needed; a copy back takes memory as late
   as the link allows,
3. takes another lossless method's schedule where that is faster within the budget: so it is never slower than any of them,
4. states the bound (`lower_bound_s`) and by how much the step exceeds it (`gap`) in the schedule's decisions.

Without a budget the step takes as long as eager's, with the least memory found that costs no time.

Ours; related are POFO (Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021) and Capuchin (Peng et al., ASPLOS 2020), which choose
between the same means by other rules.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from membench.backends.simulated import SimulatedBackend
from membench.core.cost_model import CostModel
from membench.core.errors import InfeasibleSchedule, MembenchError
from membench.core.schedule import Schedule
from membench.core.task_graph import TaskGraph
from membench.execution.executor import execute
from membench.planning.rewrite import join_convolution_backward, mask_relu
from membench.strategies.base import Strategy
from membench.strategies.eager import Eager
from membench.strategies.geeps import GeePS
from membench.strategies.joint.bound import Relaxation, relax
from membench.strategies.joint.emit import emit
from membench.strategies.joint.problem import Choice, Problem
from membench.strategies.joint.search import Plan, Search, seeds
from membench.strategies.joint.sequence import Program
from membench.strategies.joint.transfers import Transfers, least_bytes
from membench.strategies.layrub.strategy import LayrubHybrid, LayrubInter, LayrubIntra
from membench.strategies.memonger import Memonger
from membench.strategies.superneurons import SuperNeurons
from membench.strategies.vdnn import VdnnAll, VdnnConv, VdnnDyn

OTHERS: tuple[Strategy, ...] = (
    Eager(), SuperNeurons(), VdnnAll(), VdnnConv(), VdnnDyn(), GeePS(), Memonger(), LayrubIntra(), LayrubInter(), LayrubHybrid(),
)  # fmt: skip
"""Methods that give plain PyTorch's bits, and whose schedules are candidates."""

SMALLEST_SHARE = 1 / 128
"""Blocks smaller than this share of the largest one are kept."""

EVALUATIONS = 1000
"""Number of plans that are tried, for small graphs."""

HALVINGS = 12
"""Number of budgets that are tried where none is given."""


class Joint(Strategy):
    """Keep, offload or recompute each stored block, chosen together under a budget; states a lower bound on the time."""

    name = "joint"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        problems = [_problem(variant, cost) for variant in _variants(graph, cost)]
        if budget_bytes is None:
            return self._without_loss_of_time(problems[0])
        relaxations = [relax(problem, budget_bytes) for problem in problems]
        candidates = [
            *self._own(problems, relaxations, budget_bytes),
            *self._of_others(graph, cost, budget_bytes),
        ]
        if not candidates:
            raise _refusal(problems, budget_bytes)
        timed = ((step_time_s(schedule, cost), schedule.peak_bytes, schedule) for schedule in candidates)
        step_s, _, fastest = min(timed, key=lambda candidate: candidate[:2])
        return _certified(fastest, step_s, min(relaxed.step_s for relaxed in relaxations if relaxed))

    def _own(
        self, problems: Sequence[Problem], relaxations: Sequence[Relaxation | None], budget_bytes: int
    ) -> Iterator[Schedule]:
        """Yield the schedule of the first variant of the graph with which a plan keeps the budget."""
        for problem, relaxed in zip(problems, relaxations, strict=True):
            if relaxed and (plan := _search(problem, relaxed, budget_bytes)):
                yield emit(self.name, plan.program, plan.transfers, budget_bytes)
                return

    def _of_others(self, graph: TaskGraph, cost: CostModel, budget_bytes: int) -> Iterator[Schedule]:
        for other in OTHERS:
            with suppress(MembenchError):
                yield replace(other.schedule(graph, cost, budget_bytes), strategy=self.name)

    def _without_loss_of_time(self, problem: Problem) -> Schedule:
        """Return the schedule with the least budget found at which no copy is waited for."""
        everything = [Choice.OFFLOAD] * len(problem.units)
        kept = Program(problem, [Choice.KEEP] * len(problem.units))
        most = max(kept.held_bytes(), default=problem.graph.external_bytes)
        best = Plan((), kept, Transfers((), problem.compute_s, most))
        least = problem.graph.lower_bound_bytes
        for _ in range(HALVINGS):
            middle = (least + most) // 2
            search = Search(problem, middle, evaluations=1, enough_s=problem.compute_s)
            if search.try_choices(everything) and search.is_over:
                best = search.best or best
                most = best.transfers.peak_bytes
            else:
                least = middle
        schedule = emit(self.name, best.program, best.transfers, None)
        return _certified(schedule, best.transfers.step_s, problem.compute_s)


def _variants(graph: TaskGraph, cost: CostModel) -> Iterator[TaskGraph]:
    """Yield the graph as eager runs it; with two tasks for a convolution's gradients; and with masks of ReLUs."""
    yield join_convolution_backward(graph, cost)
    yield graph
    yield mask_relu(graph, cost)


def _problem(graph: TaskGraph, cost: CostModel) -> Problem:
    largest = max((block.size_bytes for block in graph.blocks if block.is_transient), default=0)
    return Problem(graph, cost, max(1, int(largest * SMALLEST_SHARE)))


def _search(problem: Problem, relaxed: Relaxation, budget_bytes: int) -> Plan | None:
    search = Search(problem, budget_bytes, evaluations=EVALUATIONS, enough_s=relaxed.step_s)
    for choices in seeds(problem, relaxed.offloaded, relaxed.recomputed):
        search.try_choices(choices)
    if search.best:
        search.improve()
    return search.best


def step_time_s(schedule: Schedule, cost: CostModel) -> float:
    """Return the simulated seconds of a schedule."""
    return execute(schedule, SimulatedBackend(schedule.graph, cost)).step_time_s


def _certified(schedule: Schedule, step_s: float, lower_bound_s: float) -> Schedule:
    gap = step_s / lower_bound_s - 1 if lower_bound_s else 0.0
    return replace(schedule, decisions=(("lower_bound_s", lower_bound_s), ("gap", max(0.0, gap))))


def _refusal(problems: Sequence[Problem], budget_bytes: int) -> InfeasibleSchedule:
    """Return the error for a budget that no plan keeps, with the least that one needs."""
    needs = []
    for problem in problems:
        choices = [Choice.OFFLOAD] * len(problem.units)
        needed_bytes, position = least_bytes(Program(problem, choices), choices)
        needs.append((needed_bytes, problem.graph.tasks[position].name))
    needed_bytes, task = min(needs)
    return InfeasibleSchedule(
        task=task,
        needed_bytes=needed_bytes,
        budget_bytes=budget_bytes,
        lower_bound_bytes=min(problem.graph.lower_bound_bytes for problem in problems),
    )
