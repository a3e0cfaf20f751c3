"""Local search: change the choice of one unit, or of several at once, and keep what makes the step shorter."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from membench.strategies.joint.problem import Choice, Problem
from membench.strategies.joint.sequence import Choices, Program
from membench.strategies.joint.transfers import Transfers, plan_transfers

TOLERANCE = 1e-9
"""Relative differences of step times below it are rounding."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Choices, and the program and the copies that follow from them."""

    choices: tuple[Choice, ...]
    program: Program
    transfers: Transfers


class Search:
    """The best plan of those tried so far within a budget.

    Args:
        evaluations: number of plans to try.
        enough_s: a step this short ends the search.
    """

    def __init__(self, problem: Problem, budget_bytes: int, *, evaluations: int, enough_s: float) -> None:
        self.problem = problem
        self.best: Plan | None = None
        self._budget_bytes = budget_bytes
        self._left = evaluations
        self._enough_s = enough_s * (1 + TOLERANCE)

    @property
    def step_s(self) -> float:
        return self.best.transfers.step_s if self.best else inf

    @property
    def is_over(self) -> bool:
        return self._left <= 0 or self.step_s <= self._enough_s

    def try_choices(self, choices: Choices) -> bool:
        """Evaluate choices, and return whether they are the best so far."""
        self._left -= 1
        program = self._program(choices)
        transfers = plan_transfers(program, choices, self._budget_bytes)
        if transfers is None or transfers.step_s >= self.step_s * (1 - TOLERANCE):
            return False
        self.best = Plan(tuple(choices), program, transfers)
        return True

    def _program(self, choices: Choices) -> Program:
        """Return the program, the best plan's where the choices recompute the same."""
        drops = (Choice.RECOMPUTE, Choice.REPEAT)
        if self.best and all(
            a is b or not (a in drops or b in drops) for a, b in zip(choices, self.best.choices, strict=True)
        ):
            return self.best.program
        return Program(self.problem, choices)

    def improve(self) -> None:
        """Change groups of units, cheapest to recompute first, from large groups to single ones."""
        units = self.problem.units
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
        found = False
        for choice in Choice:
            assert self.best is not None
            changed = list(self.best.choices)
            for number in group:
                changed[number] = self._allowed(number, choice, changed[number])
            if tuple(changed) != self.best.choices and not self.is_over:
                found |= self.try_choices(changed)
        return found

    def _allowed(self, number: int, choice: Choice, instead: Choice) -> Choice:
        can_repeat = bool(self.problem.units[number].makers)
        return choice if can_repeat or choice in (Choice.KEEP, Choice.OFFLOAD) else instead


def seeds(problem: Problem, offloaded: dict[int, float], recomputed: dict[int, float]) -> Iterable[Choices]:
    """Yield choices to start from: everything offloaded, and the relaxation rounded at several thresholds."""
    yield [Choice.OFFLOAD] * len(problem.units)
    for threshold in (0.5, 0.05):
        yield [
            Choice.RECOMPUTE if recomputed.get(number, 0.0) > threshold else Choice.OFFLOAD
            for number in range(len(problem.units))
        ]
    yield [
        Choice.RECOMPUTE
        if recomputed.get(number, 0.0) > 0.5
        else Choice.OFFLOAD
        if offloaded.get(number, 0.0) > 0.01
        else Choice.KEEP
        for number in range(len(problem.units))
    ]
    yield [Choice.KEEP] * len(problem.units)
