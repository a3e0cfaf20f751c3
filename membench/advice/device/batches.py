"""The largest batch of plain PyTorch, to the sample, and of each method, to a part in 16."""

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from threading import Lock

from membench.advice.device.advice import AdvisedPlan, Refusal
from membench.advice.device.planning import MORE, Target, bound_bytes, load, load_without_budget
from membench.advice.device.processes import Planners
from membench.advice.device.resized import ResizedGraph
from membench.advice.device.search import MOST, largest_batch
from membench.advice.pool.workers import TooSlow, Urgency
from membench.core.errors import UnsupportedModel, UnsupportedStrategy
from membench.core.graph.task_graph import ARGUMENT_ROLES, EXTERNAL_ROLES, TaskGraph
from membench.planning.memory.device_memory import device_memory
from membench.steps.plan import Runs
from membench.strategies.base import Strategy
from membench.strategies.pytorch import PyTorch
from membench.sweep.limits import by_line
from membench.sweep.limits import largest as largest_fitting


class Batches:
    """Searches for the largest batches of one step.

    Graphs at other batches are captured, or where the captures of three lie on a line taken from it.

    Args:
        planners: that plan; they get the line.
        graph: the step's graph, with its update.
    """

    def __init__(self, planners: Planners, graph: TaskGraph, target: Target) -> None:
        self._planners, self._graph, self._target = planners, graph, target
        self._batch_size = graph.batch_size
        self._lock = Lock()

    def plain(self) -> int | None:
        """Return plain PyTorch's largest batch, None if one sample does not fit or another batch cannot be captured."""
        with self._lock:  # the graphs of other batches are searched for once
            return self._plain

    @cached_property
    def _plain(self) -> int | None:
        if bound_bytes(self._graph, PyTorch()) > self._target.room_bytes:
            return None  # weights and states do not depend on the batch
        try:
            resized = ResizedGraph.of(self._captured, self._batch_size)
            if resized:
                found = self._largest_plain(resized.at)
                if resized.contains(self._captured(found or 1)):
                    self._planners.resize(resized)
                    return found
            return self._largest_plain(self._captured)
        except UnsupportedModel:
            return None

    def of_method(self, strategy: Strategy, outcome: AdvisedPlan | Refusal) -> int | None:
        """Return the largest batch found with which a method fits; None: none, or another batch cannot be captured.

        Args:
            outcome: at the step's batch.
        """
        if isinstance(outcome, Refusal) and not outcome.is_planned:
            return None  # at no batch
        if strategy.runs_as_written:
            return self.plain()
        self.plain()
        known = self._load(outcome)
        if known is None or (isinstance(outcome, AdvisedPlan) and outcome.divides_batch):
            return None  # it cannot schedule the step, or has no limit
        limited = self._batch_size if known >= 1 else MOST + 1  # from there on it does not fit without a budget

        def load_at(size: int) -> float:
            nonlocal limited
            found = self._run(partial(load, unlimited=size < limited), strategy, size)
            limited = min(limited, size) if found >= 1 else limited
            return found

        return self._search(strategy, load_at, known)

    def of_method_without_budget(self, strategy: Strategy, outcome: AdvisedPlan | Refusal) -> int | None:
        """Return the same over plans that are free to hold what they like, and the step's batch if that fits at all."""
        if not isinstance(outcome, AdvisedPlan):
            return None
        if outcome.budget_bytes is not None:
            return self._batch_size
        self.plain()

        def load_at(size: int) -> float:
            return self._run(load_without_budget, strategy, size)

        return self._search(strategy, load_at, self._load(outcome) or 1.0)

    def _search(self, strategy: Strategy, load_at: Callable[[int], float], known: float) -> int | None:
        try:
            fixed = 0.0 if strategy.moves_weights else min(1.0, self._fixed_bytes / self._target.room_bytes)
            found = largest_batch(load_at, self._batch_size, known, fixed=fixed)
        except (UnsupportedModel, UnsupportedStrategy, TooSlow):
            return None
        plain = self.plain() or 0  # a batch between two that the search tries
        with suppress(UnsupportedModel, UnsupportedStrategy, TooSlow):
            return plain if plain > (found or 0) and load_at(plain) <= 1 else found
        return found

    def _load(self, outcome: AdvisedPlan | Refusal) -> float | None:
        """Return the part of the memory that the step needs; see `load`."""
        target = self._target
        if isinstance(outcome, AdvisedPlan):
            return min(1.0, outcome.reserved_bytes / target.free_bytes if outcome.budget_bytes is None else 1.0)
        return outcome.needed_bytes and max(MORE, outcome.needed_bytes / target.room_bytes)

    def _run(self, job: Callable[..., float], strategy: Strategy, size: int) -> float:
        bound = partial(job, batch_size=size, strategy=strategy, target=self._target)
        return self._planners.run(bound, size, Urgency.LARGEST_BATCH)

    def _captured(self, size: int) -> TaskGraph:
        return self._planners.graph(size, size)

    @cached_property
    def _fixed_bytes(self) -> int:
        """Return what the step holds at any batch: weights and the optimizer's state."""
        kept = EXTERNAL_ROLES - ARGUMENT_ROLES
        return sum(block.size_bytes for block in self._graph.blocks if block.role in kept)

    def _largest_plain(self, graph_at: Callable[[int], TaskGraph]) -> int | None:
        target, first = self._target, self._batch_size

        def runs(size: int) -> Runs:
            return target.planner(lambda _: graph_at(size), size, PyTorch()).within(None)

        def reserved_bytes(size: int) -> int:
            return device_memory(runs(size), target.device).reserved_bytes

        one, two = ((size, reserved_bytes(size)) for size in (first, 2 * first))
        guess = max(1, by_line(one, two, target.room_bytes))
        return largest_fitting(lambda size: not target.excess_bytes(runs(size)), guess=guess)
