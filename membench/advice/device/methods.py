"""Every method planned, and its largest batch searched for, at the same time."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import replace
from functools import partial

from membench.advice.device.advice import AdvisedPlan, Refusal
from membench.advice.device.batches import Batches
from membench.advice.device.micro_batches import accumulated
from membench.advice.device.planning import Target, bound_bytes, plan_method
from membench.advice.device.processes import Planners
from membench.advice.pool.work import Work
from membench.advice.pool.workers import TooSlow, Urgency
from membench.core.errors import InfeasibleSchedule, OutOfMemory, UnsupportedStrategy
from membench.core.graph.task_graph import TaskGraph
from membench.core.units import format_bytes, format_seconds
from membench.planning.memory.bounds import least_bytes
from membench.strategies.base import Strategy

Outcome = AdvisedPlan | Refusal

NO_TIME = "not planned within the time limit"
"""Why there is no plan of a method that takes longer than the answer may."""


class Methods:
    """What methods need on a device.

    Args:
        work: at the same time as other work.
        planners: that plan.
        graph: the step's graph, with its update.
    """

    def __init__(self, work: Work, planners: Planners, batches: Batches, graph: TaskGraph, target: Target) -> None:
        self._work, self._planners, self._batches = work, planners, batches
        self._graph, self._target = graph, target
        self._plans: dict[str, Future[Outcome]] = {}

    def begin(self, chosen: Sequence[Strategy]) -> None:
        """Begin to plan methods that have not begun, unless they are known not to fit."""
        for strategy in sorted(chosen, key=_urgency):  # the first ones get the processes that are free
            if strategy.name not in self._plans:
                least_bytes = bound_bytes(self._graph, strategy)
                if least_bytes > self._target.room_bytes:
                    self._plans[strategy.name] = _known(_known_refusal(least_bytes))
                else:
                    self._plans[strategy.name] = self._work.start(self._outcome, strategy)

    def outcomes(
        self, chosen: Sequence[Strategy], *, search: bool, found_plan: Callable[[AdvisedPlan], None] | None = None
    ) -> Mapping[str, Outcome]:
        """Return each method's plan, or why it does not fit, by name.

        Args:
            search: for the largest batches too.
            found_plan: gets each plan once it is made.
        """
        found: dict[str, Outcome] = {}
        searches: dict[str, Future[int | None]] = {}

        def start(strategy: Strategy) -> None:
            batches, outcome = self._batches, found[strategy.name]
            call = batches.of_method_without_budget if strategy.searches_under_budget else batches.of_method
            searches[strategy.name] = self._work.start(call, strategy, outcome)

        self.begin(chosen)
        planned = {self._plans[strategy.name]: strategy for strategy in chosen}
        for future in as_completed(planned):
            strategy, outcome = planned[future], future.result()
            found[strategy.name] = outcome
            if isinstance(outcome, AdvisedPlan):
                taken = f"{format_bytes(outcome.peak_bytes)}, {format_seconds(outcome.step_time_s)}"
                self._work.show(f"{strategy.name:<14} {taken}")
                if found_plan:
                    found_plan(outcome)
                if search:
                    start(strategy)
        if not search:
            return {strategy.name: found[strategy.name] for strategy in chosen}
        for strategy in chosen:
            if strategy.name not in searches:
                start(strategy)
        return {
            strategy.name: _with_largest_batch(
                found[strategy.name], searches[strategy.name].result(), strategy.searches_under_budget
            )
            for strategy in chosen
        }

    def _outcome(self, strategy: Strategy) -> Outcome:
        """Return a method's plan, or why it does not fit."""
        batch_size, target = self._graph.batch_size, self._target
        stays_bytes = least_bytes(self._graph)
        job = partial(
            plan_method,
            batch_size=batch_size,
            strategy=strategy,
            target=target,
            # without a budget weights stay where they are
            unlimited=not strategy.moves_weights or stays_bytes <= target.room_bytes,
        )
        try:
            return self._planners.run(job, batch_size, _urgency(strategy))
        except UnsupportedStrategy as error:
            return Refusal(str(error), None)
        except TooSlow:
            return Refusal(NO_TIME, None, is_planned=False)
        except (InfeasibleSchedule, OutOfMemory) as error:
            needed_bytes = error.needed_bytes
            refusal = Refusal(
                str(error),
                needed_bytes,
                getattr(error, "lower_bound_bytes", None),
                is_fragmented=isinstance(error, OutOfMemory),
            )
        if not strategy.runs_as_written:
            return refusal
        return accumulated(self._planners, batch_size, target, needed_bytes or 0) or refusal


def _urgency(strategy: Strategy) -> Urgency:
    return Urgency.MOVES_WEIGHTS if strategy.moves_weights else Urgency.METHOD


def _known(outcome: Outcome) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future


def _known_refusal(least_bytes: int) -> Refusal:
    """Return the refusal of a method that is not asked."""
    reason = f"no plan of it can do with less than {format_bytes(least_bytes)}"
    return Refusal(reason, least_bytes, least_bytes, is_planned=False)


def _with_largest_batch(outcome: Outcome, largest_batch: int | None, larger_may_fit: bool) -> Outcome:
    if isinstance(outcome, Refusal):
        return replace(outcome, largest_batch=largest_batch)
    return replace(outcome, largest_batch=largest_batch, larger_may_fit=larger_may_fit)
