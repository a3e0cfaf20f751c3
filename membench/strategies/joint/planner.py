"""The plans of one graph: the best within a budget, the one that needs least without losing time, and bounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf

from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Compute
from membench.core.graph.task_graph import RECOMPUTED_SUFFIX, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import NO_LIMIT, EvaluatedChoices, Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, Problem
from membench.planning.memory.liveness import live_bytes
from membench.strategies.joint.bound import MOMENTS, relax
from membench.strategies.joint.homes import Residence
from membench.strategies.joint.others import Others
from membench.strategies.joint.relaxation import Relaxation
from membench.strategies.joint.search import TOLERANCE, Search, carried, seeds
from membench.strategies.joint.variants import Variant, Variants, held_bytes
from membench.strategies.joint.windows import least_with_collectives_s

EVALUATIONS = range(1000, 16_001)
"""Least and greatest number of plans that are tried."""

EVALUATED_STEPS = 20_000_000
"""Number of tasks of all plans that are tried, where that is between the two numbers."""

ENOUGH = 1.0005
"""The search ends at this multiple of the lower bound."""

HALVINGS = 12
"""Number of budgets that are tried where none is given."""

TRIALS = range(100, 501)
"""Least and greatest number of plans tried for each of these budgets, and for each further choice of algorithms."""

TRIED_STEPS = EVALUATED_STEPS // 50
"""Number of tasks of all these plans, where that is between the two numbers."""

STARTED_SHARE = 1 / 4
"""Of the plans that are tried: the most for the choice of a variant; at the end as many again for other encodings."""

CROWDED = 1.05
"""A step this multiple of the lower bound lacks memory: variants that need less of it are tried as well."""

UPGRADES = 4
"""Number of further choices of algorithms."""


@dataclass(frozen=True)
class Begun:
    """Searches within a budget that have descended for a share of their evaluations, by variant.

    Attributes:
        enough_s: a step this short ends them.
    """

    budget_bytes: int
    enough_s: float
    searches: dict[Variant, Search]

    @property
    def best(self) -> Variant:
        """The variant with the fastest step so far."""
        return min(self.searches, key=lambda variant: self.searches[variant].step_s)

    @property
    def search(self) -> Search:
        return self.searches[self.best]

    @property
    def step_s(self) -> float:
        """Seconds of the fastest step so far."""
        return self.search.step_s

    @property
    def tried(self) -> int:
        """Number of plans tried in all searches."""
        return sum(search.tried for search in self.searches.values())


class Planner:
    """Plans of a graph in its variants.

    Args:
        residences: residences of the graph's updates on the host, which the bound allows in addition.
        defers: the bound is that of steps whose updates may run beside the next step's forward pass, too.
    """

    def __init__(
        self, graph: TaskGraph, cost: CostModel, residences: Sequence[Residence] = (), *, defers: bool = False
    ) -> None:
        self._graph = graph
        self._residences, self.defers = residences, defers
        self._start_s = cost.task_issue_time_s(graph.tasks[0])  # the host's, before the device begins
        self._variants = Variants(graph, cost)
        self._relaxed = cache(self._relax)
        self._evaluator = cache(lambda variant: Evaluator(self._variants.problem(variant)))

    def _relax(self, budget_bytes: int, moments: int = MOMENTS) -> Relaxation | None:
        problem, savings = self._variants.bounding(budget_bytes), self._variants.savings(budget_bytes)
        return relax(problem, budget_bytes, savings, self._residences, defers=self.defers, moments=moments)

    def moved(self, budget_bytes: int) -> float:
        """Return the number of updates that the host runs in the linear program's solution."""
        relaxed = self._relaxed(budget_bytes, MOMENTS)
        return sum(relaxed.moved.values()) if relaxed else float(len(self._residences))

    def least_s(self, budget_bytes: int, moments: int = MOMENTS) -> float:
        """Return a lower bound on a step's time in any variant within a budget, infinite where no schedule keeps it.

        Args:
            moments: see `relax`; fewer of them give a lower bound in less time.
        """
        if budget_bytes < self.lower_bound_bytes:
            return inf
        relaxed = self._relaxed(budget_bytes, moments)
        return self._start_s + self._lower(relaxed) if relaxed else inf

    def begun(self, budget_bytes: int, moments: int = MOMENTS) -> "Begun | None":
        """Return searches that have begun, in the variants that seem the best; None where none keeps the budget.

        Args:
            moments: in the linear program whose solution they start from.
        """
        relaxed = self._relaxed(budget_bytes, moments)
        if relaxed is None:
            return None
        begun = Begun(budget_bytes, self._lower(relaxed) * ENOUGH, {})

        def started(variant: Variant) -> Search:
            if variant not in begun.searches:
                begun.searches[variant] = self._started(variant, relaxed, budget_bytes, begun.enough_s)
            return begun.searches[variant]

        for variants in self._variants.rounded(relaxed, budget_bytes):
            next((variant for variant in variants if started(variant).best), None)
        if begun.search.best is None:
            return None
        share = STARTED_SHARE * _number(EVALUATED_STEPS, EVALUATIONS, begun.search.best.problem)
        for variant in self._variants.smaller(begun.best) if begun.step_s > begun.enough_s * CROWDED else ():
            started(variant)
        for encoding in self._variants.encodings:
            if begun.step_s > begun.enough_s and begun.tried < share:
                started(self._variants.toggled(begun.best, encoding))
        return begun

    def finished(self, begun: "Begun", others: Others) -> EvaluatedChoices:
        """Return the best plan found, of the variant that is the best so far.

        Args:
            others: where the search starts, in addition.
        """
        budget_bytes, enough_s, search, plan = begun.budget_bytes, begun.enough_s, begun.search, begun.search.best
        assert plan is not None, "searches that have begun have a plan"
        search.left = _number(EVALUATED_STEPS, EVALUATIONS, plan.problem) - begun.tried
        if not search.is_over:
            search.start(others.choices(self._variants.problem(begun.best), search.step_s))
        search.descend()
        search.anneal()
        variant, plan = self._upgraded(begun.best, search.best or plan, budget_bytes, enough_s)
        return self._reencoded(variant, plan, budget_bytes, enough_s)

    def _started(self, variant: Variant, relaxed: Relaxation, budget_bytes: int, enough_s: float) -> Search:
        """Return a search that has descended for a share of the evaluations, if it has found a plan."""
        problem = self._variants.problem(variant)
        evaluations = int(STARTED_SHARE / 2 * _number(EVALUATED_STEPS, EVALUATIONS, problem))
        search = Search(self._evaluator(variant), budget_bytes, evaluations=evaluations, enough_s=enough_s)
        search.start(seeds(problem.units, self._by_program, *self._of_units(problem, relaxed)))
        search.descend()
        return search

    @cached_property
    def _by_program(self) -> frozenset[int]:
        """The blocks that the program itself computes again, as far as names tell them apart."""
        plain = self._graph.plain
        made = {plain.blocks[block].name for task in plain.tasks for block in task.creates} if plain else ()
        return frozenset(b.index for b in self._graph.blocks if f"{b.name}{RECOMPUTED_SUFFIX}" in made)

    def _of_units(self, problem: Problem, relaxed: Relaxation) -> list[Mapping[int, float]]:
        """Return the fractions of the linear program by a variant's units: copied, and recomputed."""
        units = self._variants.bounding(None).units
        return [
            {problem.unit_of[units[unit].blocks[0]]: fraction for unit, fraction in fractions.items() if unit >= 0}
            for fractions in (relaxed.offloaded, relaxed.recomputed)
        ]

    def _upgraded(
        self, variant: Variant, plan: EvaluatedChoices, budget_bytes: int, enough_s: float
    ) -> tuple[Variant, EvaluatedChoices]:
        """Give convolutions the fastest algorithms for which a plan leaves room, and plan again, while that helps."""
        for _ in range(UPGRADES if self._variants.options else 0):
            faster = self._variants.upgraded(variant, self._room_bytes(variant, plan, budget_bytes))
            evaluator = self._evaluator(faster)
            trials = _number(TRIED_STEPS, TRIALS, evaluator.problem)
            search = Search(evaluator, budget_bytes, evaluations=trials, enough_s=enough_s)
            search.try_choices(plan.choices)
            search.descend()
            if search.best is None or search.best.step_s >= plan.step_s * (1 - TOLERANCE):
                break
            variant, plan = faster, search.best
        return variant, plan

    def _reencoded(
        self, variant: Variant, plan: EvaluatedChoices, budget_bytes: int, enough_s: float
    ) -> EvaluatedChoices:
        """Add and drop single encodings from a plan's choices on, until none of them helps.

        An encoding that was dropped before another was added may help together with that.
        """
        left, found = int(STARTED_SHARE * _number(EVALUATED_STEPS, EVALUATIONS, plan.problem)), True
        while found:
            found = False
            for encoding in self._variants.encodings:
                if left <= 0 or plan.step_s <= enough_s:
                    return plan
                changed = self._variants.toggled(variant, encoding)
                evaluator = self._evaluator(changed)
                search = Search(evaluator, budget_bytes, evaluations=TRIALS.start, enough_s=enough_s)
                search.start(carried(plan, evaluator.problem))
                search.descend()
                left -= search.tried
                if search.best and search.best.step_s < plan.step_s * (1 - TOLERANCE):
                    variant, plan, found = changed, search.best, True
        return plan

    def _room_bytes(self, variant: Variant, plan: EvaluatedChoices, budget_bytes: int) -> dict[int, int]:
        """Return the room for a workspace where a plan runs each task with a choice of algorithms: its runs' least."""
        schedule = emit("", plan, None)
        found: dict[str, int] = {}
        for item, here_bytes in zip(schedule.instructions, live_bytes(schedule), strict=True):
            if isinstance(item, Compute):
                task = schedule.graph.tasks[item.task]
                name = task.name.removesuffix(RECOMPUTED_SUFFIX)
                room_bytes = budget_bytes - here_bytes + task.workspace_bytes
                found[name] = min(room_bytes, found.get(name, room_bytes))
        return {task: found[self._graph.tasks[task].name] for task in self._variants.options}

    def _lower(self, relaxed: Relaxation) -> float:
        return relaxed.step_s - self._variants.spared_s

    def without_loss_of_time(self) -> EvaluatedChoices:
        """Return the plan with the least budget found at which no copy is waited for."""
        evaluator = self._evaluator(self._variants.fastest)
        problem = evaluator.problem
        everything, nothing = [OFFLOAD] * len(problem.units), [KEEP] * len(problem.units)
        least, most = evaluator.needed_bytes(everything)[0], evaluator.needed_bytes(nothing)[0]
        best, least_s = evaluator.plan(nothing, most), problem.compute_s
        if best.step_s > least_s * (1 + TOLERANCE):
            # blocks that no choice is made for leave, or the device waits for collectives
            best = evaluator.plan(nothing, NO_LIMIT)
            most, least_s = best.peak_bytes, best.step_s
        trials = _number(TRIED_STEPS, TRIALS, problem)
        for _ in range(HALVINGS):
            middle = (least + most) // 2
            search = Search(evaluator, middle, evaluations=trials, enough_s=least_s)
            search.try_choices(everything)
            if search.best:
                search.descend()
            if search.best and search.best.step_s <= least_s * (1 + TOLERANCE):
                best, most = search.best, min(search.best.peak_bytes, middle)
            else:
                least = middle
        return best

    @cached_property
    def compute_s(self) -> float:
        """The least seconds of all tasks and collectives, each once, in any variant."""
        return self._start_s + least_with_collectives_s(self._variants.bounding(None)) - self._variants.spared_s

    @cached_property
    def lower_bound_bytes(self) -> int:
        """What any schedule of any variant needs."""
        return min(
            max(held_bytes(self._variants.problem(variant).graph), default=0) for variant in self._variants.least
        )

    @property
    def needed_bytes(self) -> int:
        """The least that a plan was found to need."""
        return self._least[0]

    @cached_property
    def _least(self) -> tuple[int, str]:
        """The least that a plan needs, and the task that needs it."""
        needs = []
        for variant in self._variants.least:
            problem = self._variants.problem(variant)
            needed_bytes, operation = Evaluator(problem).needed_bytes([OFFLOAD] * len(problem.units))
            needs.append((needed_bytes, problem.operations[operation].name))
        return min(needs)

    def refusal(self, budget_bytes: int) -> InfeasibleSchedule:
        """Return the error for a budget that no plan keeps, with the least that one needs."""
        needed_bytes, task = self._least
        return InfeasibleSchedule(
            task=task, needed_bytes=needed_bytes, budget_bytes=budget_bytes, lower_bound_bytes=self.lower_bound_bytes
        )


def _number(steps: int, within: range, problem: Problem) -> int:
    """Return how many plans are tried for that many tasks of all of them, within limits."""
    return min(max(steps // max(1, len(problem.graph.tasks)), within.start), within.stop - 1)
