"""Planning of a step: from captured graphs, costs and a strategy to validated schedules."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from membench.core.errors import InfeasibleSchedule, MembenchError, OutOfMemory, UnsupportedStrategy
from membench.core.graph.schedule import RepeatedSchedule, Schedule
from membench.core.graph.task_graph import Role, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.step.optimizer import UpdateOf
from membench.execution.simulation import step_time_s
from membench.planning.checking.validate import validate
from membench.planning.host_memory.disk import keep_within
from membench.planning.rewrites.layer_by_layer import check_draws_nothing, layer_by_layer, together, with_own_sums
from membench.planning.rewrites.micro_batch import (
    FASTEST,
    FITTED,
    GraphAt,
    fitted_sizes,
    micro_batch_size,
    sizes_around,
)
from membench.planning.rewrites.update import add_states, add_update
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import Strategy, strategies

Runs = tuple[RepeatedSchedule, ...]
"""The schedules of a step, one after another."""

LEAST_SHARE = 3 / 4
"""Of a budget: the next one that is tried."""

BUDGETS = 3
"""How many budgets are tried where the device's allocator finds no room for a plan that keeps one."""


@dataclass(frozen=True)
class StepPlanner:
    """Plans a step by one method on one device, within any budget.

    Attributes:
        graph_at: returns the graph for a number of samples.
        batch_size: samples of the step.
        update: the weights' update, after the last micro-batch; None: the step ends with the gradients.
        micro_batch: see `compile`.
    """

    graph_at: GraphAt
    batch_size: int
    strategy: Strategy
    cost: CostModel
    update: UpdateOf | None = None
    micro_batch: int | str | None = None
    _annotated: dict[tuple[int, int, bool], TaskGraph] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def within(self, budget_bytes: int | None) -> Runs:
        """Return validated schedules for a whole batch, in as few micro-batches as the strategy finds room for.

        Args:
            budget_bytes: the most device memory that the step may hold; None: any number of bytes.

        Raises:
            InfeasibleSchedule: no micro-batch that was tried keeps the budget; describes the one with the least lower
                bound.
            MembenchError: `micro_batch` is not a size between 1 and the batch.
        """
        refusals: dict[int, InfeasibleSchedule] = {}

        def feasible(sizes: Iterable[int]) -> Iterator[Runs]:
            for size in sizes:
                try:
                    runs = self._runs_of(size, budget_bytes)
                except InfeasibleSchedule as error:
                    refusals[size] = error
                else:
                    yield runs

        promising, sizes = self._sizes(budget_bytes)
        fastest = min(feasible(promising), key=self._step_s, default=None)
        found = fastest or next(feasible(sizes), None)
        if found is None:
            raise _least(refusals, self.batch_size)
        return found

    def fitting(self, excess_bytes: Callable[[Runs], int], room_bytes: int) -> tuple[Runs, int]:
        """Return a plan within a device's memory, and its budget.

        Args:
            excess_bytes: by how much a plan exceeds what the device has; 0: it fits.
            room_bytes: the greatest budget. Where the allocator wastes memory, smaller ones are tried.

        Raises:
            InfeasibleSchedule: no plan keeps the budget.
            OutOfMemory: the allocator finds no room for the plans that keep it.
        """
        runs, budget_bytes = self.within(room_bytes), room_bytes
        needed_bytes = room_bytes + excess_bytes(runs)
        for _ in range(BUDGETS):
            excess = excess_bytes(runs)
            if not excess:
                return runs, budget_bytes
            # the allocator may waste more than the plan holds, and much less under a slightly smaller budget
            budget_bytes = max(budget_bytes - excess, int(budget_bytes * LEAST_SHARE), 1)
            try:
                runs = self.within(budget_bytes)
            except InfeasibleSchedule:  # it needs its memory, and what the allocator wastes in addition
                break
        raise OutOfMemory(needed_bytes=needed_bytes, capacity_bytes=room_bytes)

    def planned(self, budget_bytes: int | None, excess_bytes: Callable[[Runs], int], room_bytes: int) -> Runs:
        """Return a plan within a budget; without one, a plan that fits a device where there is one.

        Args:
            budget_bytes: see `within`; None: a plan without a budget if that fits the device or none does, otherwise
                one within its memory.
            excess_bytes, room_bytes: see `fitting`.

        Raises:
            InfeasibleSchedule: no plan keeps the budget.
            MembenchError: the step cannot be planned without a budget.
        """
        if budget_bytes is not None:
            return self.within(budget_bytes)
        free = self.within(None)
        has_others = self.strategy.plans_for_budgets or self.micro_batch in (FITTED, FASTEST)
        if has_others and excess_bytes(free):
            with suppress(MembenchError):  # such as of a method that takes no budget
                return self.fitting(excess_bytes, room_bytes)[0]
        return free

    def _annotated_at(self, size: int, count: int = 1, *, is_last: bool = True) -> TaskGraph:
        """Return the annotated graph of a micro-batch, or of several layer by layer; the last one has the update."""
        key = size, count, is_last
        if key not in self._annotated:
            graph = self.graph_at(size)
            if count > 1:
                check_draws_nothing(graph)
                graph = layer_by_layer(together(graph, count))
            if self.update is not None and size * count == self.batch_size:
                graph = with_own_sums(graph, self.update)
            graph = (add_update if is_last else add_states)(graph, self.update)
            self._annotated[key] = self.cost.annotate(graph)
        return self._annotated[key]

    def _runs_of(self, size: int, budget_bytes: int | None) -> Runs:
        """Return schedules in the method's order of micro-batches, or in the faster one where it leaves that open."""
        layer_by_layer = self.strategy.layer_by_layer
        if layer_by_layer is not None or size >= self.batch_size:
            return self._runs_in(size, budget_bytes, layer_by_layer=bool(layer_by_layer))
        runs, refusal = None, None
        try:
            runs = self._runs_in(size, budget_bytes, layer_by_layer=False)
        except InfeasibleSchedule as error:
            refusal = error
        if runs is None or _has_weights_at_home(runs):
            with suppress(InfeasibleSchedule, UnsupportedStrategy):  # which random numbers are
                others = self._runs_in(size, budget_bytes, layer_by_layer=True)
                if runs is None or self._step_s(others) < self._step_s(runs):
                    return others
        if runs is None:
            assert refusal is not None
            raise refusal
        return runs

    def _step_s(self, runs: Runs) -> float:
        return simulated_step(runs, self.cost).step_time_s

    def _runs_in(self, size: int, budget_bytes: int | None, *, layer_by_layer: bool) -> Runs:
        if layer_by_layer:
            parts = [(samples, count, 1) for samples, count in _counts(self.batch_size, size, updates=False)]
        else:
            counts = _counts(self.batch_size, size, updates=self.update is not None)
            parts = [(samples, 1, count) for samples, count in counts]
        last = len(parts) - 1
        graphs = [
            self._annotated_at(samples, in_graph, is_last=place == last)
            for place, (samples, in_graph, _) in enumerate(parts)
        ]
        runs = tuple(
            RepeatedSchedule(_validated(graph, self.strategy, self.cost, budget_bytes), count)
            for graph, (_, _, count) in zip(graphs, parts, strict=True)
        )
        return _within_host_memory(runs, self.cost, budget_bytes)

    def _sizes(self, budget_bytes: int | None) -> tuple[Sequence[int], Iterable[int]]:
        """Return the sizes whose fastest is taken, and those whose first is taken if none of them fits."""
        of_step = self._annotated_at, self.batch_size, self.cost, budget_bytes
        if self.micro_batch is None:
            return (), self.strategy.micro_batch_sizes(*of_step)
        if self.micro_batch == FITTED:
            return (), fitted_sizes(*of_step)
        if self.micro_batch == FASTEST:
            return sizes_around(*of_step)
        return (), (micro_batch_size(self.micro_batch, self.batch_size),)


def _has_weights_at_home(runs: Runs) -> bool:
    blocks = (block for run in runs for block in run.schedule.graph.blocks)
    return any(block.role is Role.WEIGHT and block.host_location for block in blocks)


def _counts(batch_size: int, size: int, *, updates: bool) -> list[tuple[int, int]]:
    """Return the samples of each schedule of a step and how often it runs; one that updates the weights runs once."""
    count, rest = divmod(batch_size, size)
    if updates and not rest:
        count, rest = count - 1, size
    return [(samples, number) for samples, number in ((size, count), (rest, 1)) if samples and number]


def _least(refusals: Mapping[int, InfeasibleSchedule], batch_size: int) -> InfeasibleSchedule:
    """Return the error with the least lower bound; it names its micro-batch unless only the batch was tried."""
    size, refusal = min(refusals.items(), key=lambda tried: (tried[1].lower_bound_bytes, tried[1].needed_bytes))
    return refusal if list(refusals) == [batch_size] else refusal.of_micro_batch(size)


def plan(graph: TaskGraph, strategy: Strategy, cost: CostModel, budget_bytes: int | None) -> Schedule:
    """Return a validated schedule of a graph.

    Raises:
        UnsupportedStrategy: the strategy does not support the graph's mode, or cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget.
    """
    return _validated(cost.annotate(graph), strategy, cost, budget_bytes)


def _validated(annotated: TaskGraph, strategy: Strategy, cost: CostModel, budget_bytes: int | None) -> Schedule:
    if annotated.mode not in strategy.modes:
        able = ", ".join(strategies(annotated.mode))
        raise UnsupportedStrategy(
            f"strategy {strategy.name!r} does not schedule steps of {annotated.mode}; choose one of {able}"
        )
    schedule = strategy.schedule(annotated, cost, budget_bytes)
    validate(schedule, budget_bytes=budget_bytes)
    return schedule


def _within_host_memory(runs: Runs, cost: CostModel, budget_bytes: int | None) -> Runs:
    """Return validated schedules that hold no more outside the device than the machine has.

    Raises:
        InfeasibleSchedule: see `keep_within`.
    """
    limit = cost.host_limit
    if limit is None:
        return runs
    found = keep_within(runs, limit)
    if found is runs:
        return runs
    for run in found:
        validate(run.schedule, budget_bytes=budget_bytes, host_memory_bytes=limit.memory_bytes)
    return tuple(replace(run, schedule=_with_its_gap(run.schedule, cost)) for run in found)


def _with_its_gap(schedule: Schedule, cost: CostModel) -> Schedule:
    """Return a schedule with a lower bound, which holds for any disk, and by how much its own time exceeds that."""
    decisions = dict(schedule.decisions)
    if not decisions.get("lower_bound_s"):
        return schedule
    decisions["gap"] = max(0.0, step_time_s(schedule, cost) / decisions["lower_bound_s"] - 1)
    return replace(schedule, decisions=tuple(decisions.items()))
