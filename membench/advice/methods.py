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
            batches, outcome = self._batches, found[strategy.name]
            call = batches.of_method_without_budget if strategy.searches_under_budget else batches.of_method
            searches[strategy.name] = self._work.start(call, strategy, outcome)

        for future in as_completed(planning):
            strategy = planning[future]
            found[strategy.name] = future.result()
            if search and isinstance(found[strategy.name], AdvisedPlan):
                start(strategy)
        check_lower_bound(found.values(), self._target.room_bytes)
        if not search:
            return found
        for strategy in chosen:
            if strategy.name not in searches:
                start(strategy)
        return {
            strategy.name: _with_largest_batch(
                found[strategy.name], searches[strategy.name].result(), strategy.searches_under_budget
            )
            for strategy in chosen
        }

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


def _with_largest_batch(outcome: Outcome, largest_batch: int | None, larger_may_fit: bool) -> Outcome:
    if isinstance(outcome, Refusal):
        return replace(outcome, largest_batch=largest_batch)
    return replace(outcome, largest_batch=largest_batch, larger_may_fit=larger_may_fit)


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
