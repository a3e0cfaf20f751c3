"""Local search over the choices: first descend in groups of units, then anneal with changes of one or two."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, inf
from random import Random

from membench.planning.choices.evaluation import EvaluatedChoices, Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, REPEAT, Choices, Problem, Unit

TOLERANCE = 1e-9
"""Relative differences of step times below it are rounding."""

WARMTH = 0.002
"""The temperature at which annealing starts, as a share of the step's time."""

SEED = 0


class Search:
    """The best plan of those tried so far within a budget.

    Args:
        evaluations: number of plans to try.
        enough_s: a step this short ends the search.

    Attributes:
        best: the best of the plans tried so far.
        tried: their number; `left`: how many more may be tried.
    """

    def __init__(self, evaluator: Evaluator, budget_bytes: int, *, evaluations: int, enough_s: float) -> None:
        self.best: EvaluatedChoices | None = None
        self._evaluator = evaluator
        self._units = evaluator.problem.units
        self._budget_bytes = budget_bytes
        self.left, self.tried = evaluations, 0
        self._descended: EvaluatedChoices | None = None
        self._enough_s = enough_s * (1 + TOLERANCE)

    @property
    def step_s(self) -> float:
        """Seconds of the best plan; infinite where there is none."""
        return self.best.step_s if self.best else inf

    @property
    def is_over(self) -> bool:
        return self.left <= 0 or (self.best is not None and self.best.step_s <= self._enough_s)

    def try_choices(self, choices: Choices) -> bool:
        """Evaluate choices, and return whether they are the best so far."""
        best = self.best
        self._evaluate(choices, self.step_s)
        return self.best is not best

    def start(self, seeds: Iterable[Choices]) -> None:
        """Try choices to start from."""
        for choices in seeds:
            if not self.is_over:
                self.try_choices(choices)

    def _evaluate(self, choices: Choices, slowest_s: float) -> EvaluatedChoices:
        """Return the plan of choices, infinitely long if longer than `slowest_s`; keep it if it is the best so far."""
        self._count()
        plan = self._evaluator.plan(choices, self._budget_bytes, slowest_s)
        if plan.step_s < self.step_s * (1 - TOLERANCE):
            self.best = plan
        return plan

    def _count(self) -> None:
        self.left, self.tried = self.left - 1, self.tried + 1

    def descend(self) -> None:
        """Change groups of units, cheapest to recompute first, from large groups to single ones."""
        if self.best is None or self.best is self._descended:
            return
        units = self._units
        order = sorted(range(len(units)), key=lambda n: (units[n].remake_s / max(1, units[n].size_bytes), n))
        size = max(1, len(order) // 4)
        found = True
        while not self.is_over and (found or size > 1):
            groups = [order[start : start + size] for start in range(0, len(order), size)]
            found = sum(map(self._change, groups)) > 0  # each is tried
            size = max(1, size // 2)
        if self.left > 0:
            self._descended = self.best

    def _change(self, group: Sequence[int]) -> bool:
        """Try each choice for a group of units, and return whether one was better."""
        found = False
        for choice in (KEEP, OFFLOAD, RECOMPUTE, REPEAT):
            if self.best is None or self.is_over:
                return found
            changed = list(self.best.choices)
            for number in group:
                if choice in (KEEP, OFFLOAD) or self._units[number].makers:
                    changed[number] = choice
            if tuple(changed) != self.best.choices:
                found |= self.try_choices(changed)
        return found

    def anneal(self) -> None:
        """Change one or two units at random; accept what makes the step longer with a probability that falls to zero.

        Choices that come again count as another plan, but are not evaluated again: of a small network most are.
        """
        if self.best is None or not self._units:
            return
        random, evaluations = Random(SEED), self.left
        step_s_of: dict[bytes, float] = {}
        choices, step_s = list(self.best.choices), self.best.step_s
        while not self.is_over:
            warmth_s = WARMTH * step_s * self.left / evaluations
            changed = list(choices)
            for number in random.sample(range(len(choices)), min(len(choices), random.choice((1, 1, 2)))):
                options = (KEEP, OFFLOAD, RECOMPUTE, REPEAT) if self._units[number].makers else (KEEP, OFFLOAD)
                changed[number] = random.choice(options)
            changed_s = step_s_of.get(key := bytes(changed))
            if changed_s is None:
                changed_s = step_s_of[key] = self._evaluate(changed, inf).step_s
            else:
                self._count()
            if changed_s <= step_s or random.random() < exp((step_s - changed_s) / warmth_s):
                choices, step_s = changed, changed_s


def seeds(
    units: Sequence[Unit], by_program: frozenset[int], offloaded: Mapping[int, float], recomputed: Mapping[int, float]
) -> Iterator[Choices]:
    """Yield choices to start from: everything kept, everything offloaded, and the relaxation rounded in several ways.

    Where weights are gathered, each is tried first with all of them gathered again, and last what the program does.

    Args:
        by_program: blocks that the program itself computes again.
    """
    gathered = any(unit.gather_s for unit in units)
    for choices in _seeds(len(units), offloaded, recomputed):
        if gathered:
            yield [RECOMPUTE if unit.gather_s else choice for unit, choice in zip(units, choices, strict=True)]
        yield choices
    for choice in (KEEP, OFFLOAD) if gathered else ():
        again = (unit.makers and (unit.gather_s or not by_program.isdisjoint(unit.blocks)) for unit in units)
        yield [RECOMPUTE if is_again else choice for is_again in again]


def _seeds(units: int, offloaded: Mapping[int, float], recomputed: Mapping[int, float]) -> Iterator[Choices]:
    yield [KEEP] * units
    yield [OFFLOAD] * units
    for threshold in (0.5, 0.05):
        yield [RECOMPUTE if recomputed.get(number, 0.0) > threshold else OFFLOAD for number in range(units)]
    kept = [offloaded.get(number, 0.0) + recomputed.get(number, 0.0) < 0.01 for number in range(units)]
    yield [
        KEEP if kept[number] else RECOMPUTE if recomputed.get(number, 0.0) > 0.5 else OFFLOAD for number in range(units)
    ]


def carried(plan: EvaluatedChoices, problem: Problem) -> Iterator[Choices]:
    """Yield a plan's choices for another variant of its graph; of blocks that its own lacks, all leave, or all stay."""
    chosen = {block: n for unit, n in zip(plan.problem.units, plan.choices, strict=True) for block in unit.blocks}
    for otherwise in (OFFLOAD, KEEP):
        choices = [chosen.get(unit.blocks[0], otherwise) for unit in problem.units]
        yield [
            choice if choice in (KEEP, OFFLOAD) or unit.makers else OFFLOAD
            for unit, choice in zip(problem.units, choices, strict=True)
        ]
