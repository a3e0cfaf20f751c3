"""Local search: change the choice of one unit, or of several at once, and keep what makes the step shorter."""

from collections.abc import Iterator, Mapping, Sequence

from membench.strategies.joint.evaluation import Choices, Evaluator, Plan
from membench.strategies.joint.loops import KEEP, OFFLOAD, RECOMPUTE, REPEAT

TOLERANCE = 1e-9
"""Relative differences of step times below it are rounding."""


class Search:
    """The best plan of those tried so far within a budget.

    Args:
        evaluations: number of plans to try.
        enough_s: a step this short ends the search.
    """

    def __init__(self, evaluator: Evaluator, budget_bytes: int, *, evaluations: int, enough_s: float) -> None:
        self.best: Plan | None = None
        self._evaluator = evaluator
        self._units = evaluator.problem.units
        self._budget_bytes = budget_bytes
        self._left = evaluations
        self._enough_s = enough_s * (1 + TOLERANCE)

    @property
    def is_over(self) -> bool:
        return self._left <= 0 or (self.best is not None and self.best.step_s <= self._enough_s)

    def try_choices(self, choices: Choices) -> bool:
        """Evaluate choices, and return whether they are the best so far."""
        self._left -= 1
        plan = self._evaluator.plan(choices, self._budget_bytes)
        best_s = self.best.step_s if self.best else float("inf")
        if plan.step_s < best_s * (1 - TOLERANCE):
            self.best = plan
            return True
        return False

    def improve(self) -> None:
        """Change groups of units, cheapest to recompute first, from large groups to single ones."""
        units = self._units
        order = sorted(range(len(units)), key=lambda n: (units[n].remake_s / max(1, units[n].size_bytes), n))
        size = max(1, len(order) // 4)
        while not self.is_over:
            found = False
            for start in range(0, len(order), size):
                found |= self._change(order[start : start + size])
                if self.is_over:
                    return
            if not found and size == 1:
                return
            size = max(1, size // 2)

    def _change(self, group: Sequence[int]) -> bool:
        """Try each choice for a group of units, and return whether one was better."""
        found = False
        for choice in (KEEP, OFFLOAD, RECOMPUTE, REPEAT):
            assert self.best is not None
            changed = list(self.best.choices)
            for number in group:
                if choice in (KEEP, OFFLOAD) or self._units[number].makers:
                    changed[number] = choice
            if tuple(changed) != self.best.choices and not self.is_over:
                found |= self.try_choices(changed)
        return found


def seeds(units: int, offloaded: Mapping[int, float], recomputed: Mapping[int, float]) -> Iterator[Choices]:
    """Yield choices to start from: everything offloaded, and the relaxation rounded at several thresholds."""
    yield [OFFLOAD] * units
    for threshold in (0.5, 0.05):
        yield [RECOMPUTE if recomputed.get(number, 0.0) > threshold else OFFLOAD for number in range(units)]
    yield [
        RECOMPUTE
        if recomputed.get(number, 0.0) > 0.5
        else OFFLOAD
        if offloaded.get(number, 0.0) > 0.01
        else KEEP
        for number in range(units)
    ]
    yield [KEEP] * units
