"""Every method planned, and its largest batch searched for, at the same time."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import replace
from functools import partial

from membench.advice.advice import AdvisedPlan, Refusal
from membench.advice.batches import Batches
from membench.advice.micro_batches import accumulated
from membench.advice.planning import Target, plan_method
from membench.advice.processes import Planners
from membench.advice.work import Work
from membench.core.errors import InfeasibleSchedule, MembenchError, OutOfMemory, UnsupportedStrategy
from membench.core.units import format_bytes
from membench.strategies.base import Strategy
from membench.strategies.pytorch import PyTorch

Outcome = AdvisedPlan | Refusal

CHOOSERS = frozenset({"joint"})
"""Methods that take the schedules of others, if those are better, and plan for seconds. Their largest batch is one of the
others'."""

CHOICES = 2
"""Batches that are tried of such a method, the largest."""


class Methods:
    """What methods need on a device.

    Args:
        work: at the same time as other work.
        planners: that plan.
    """

    def __init__(
        self, work: Work, planners: Planners, batches: Batches, batch_size: int, target: Target
    ) -> None:
        self._work, self._planners, self._batches = work, planners, batches
        self._batch_size, self._target = batch_size, target

    def outcomes(self, chosen: Sequence[Strategy], *, search: bool) -> Mapping[str, Outcome]:
        """Return each method's plan, or why it does not fit, by name.

        Args:
            search: for the largest batches too.

        Raises:
            MembenchError: the memory is too little for any schedule.
        """
        planning = {self._work.start(self._planned, each): each for each in chosen}
        found: dict[str, Outcome] = {}
        searches: dict[str, Future[int | None]] = {}

        def start(strategy: Strategy) -> None:
            outcome = found[strategy.name]
            searches[strategy.name] = self._work.start(self._batches.of_method, strategy, outcome)

        for future in as_completed(planning):
            strategy = planning[future]
            found[strategy.name] = future.result()
            if search and strategy.name not in CHOOSERS and isinstance(found[strategy.name], AdvisedPlan):
                start(strategy)
        check_lower_bound(found.values(), self._target.room_bytes)
        if not search:
            return found
        for strategy in chosen:
            if strategy.name not in {*searches, *CHOOSERS}:
                start(strategy)
        largest = {name: future.result() for name, future in searches.items()}
        choosers = [strategy for strategy in chosen if strategy.name in CHOOSERS]
        others = [size for name, size in largest.items() if size and _gives_plain_results(found[name])]
        largest |= {each.name: self._of_chooser(each, found[each.name], others) for each in choosers}
        return {name: replace(each, largest_batch=largest[name]) for name, each in found.items()}

    def _of_chooser(self, strategy: Strategy, outcome: Outcome, others: Collection[int]) -> int | None:
        """Return the largest batch of the others with which a method fits, or else the largest found in a search."""
        sizes = sorted({size for size in others if size > self._batch_size}, reverse=True)[:CHOICES]
        fits = {size: self._work.start(self._batches.fits, strategy, size) for size in sizes}
        found = [size for size, future in fits.items() if future.result()]
        return max(found) if found else self._batches.of_method(strategy, outcome)

    def _planned(self, strategy: Strategy) -> Outcome:
        """Return a method's plan, or why it does not fit."""
        job = partial(plan_method, batch_size=self._batch_size, strategy=strategy, target=self._target)
        try:
            return self._planners.run(job, self._batch_size)
        except UnsupportedStrategy as error:
            return Refusal(str(error), None)
        except (InfeasibleSchedule, OutOfMemory) as error:
            needed_bytes, bound_bytes = error.needed_bytes, getattr(error, "lower_bound_bytes", None)
            refusal = Refusal(str(error), needed_bytes, bound_bytes)
        if not isinstance(strategy, PyTorch):
            return refusal
        return accumulated(self._planners, self._batch_size, self._target, needed_bytes or 0) or refusal


def _gives_plain_results(outcome: Outcome) -> bool:
    return isinstance(outcome, Refusal) or outcome.is_exact


def check_lower_bound(outcomes: Collection[Outcome], room_bytes: int) -> None:
    """Refuse memory that is too little for any schedule.

    Raises:
        MembenchError: it is.
    """
    refused = [each for each in outcomes if isinstance(each, Refusal)]
    bounds = [each.lower_bound_bytes for each in refused if each.lower_bound_bytes is not None]
    if len(refused) == len(outcomes) and bounds and room_bytes < min(bounds):
        raise MembenchError(
            f"{format_bytes(room_bytes)} are too little: no schedule of this step can do with less than "
            f"{format_bytes(min(bounds))}; raise the budget, take a larger device, or lower the batch size"
        )
