"""One method planned for a device that may lack the memory; what runs in the processes of an advice."""

from contextlib import suppress
from dataclasses import dataclass

from membench.advice.device.advice import AdvisedPlan
from membench.core.errors import InfeasibleSchedule, OutOfMemory
from membench.core.graph.schedule import DELAYED_STEPS
from membench.core.graph.task_graph import ARGUMENT_ROLES, Kind, Role, TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.core.step.optimizer import UpdateOf
from membench.cost.roofline import RooflineCost
from membench.planning.memory.bounds import least_bytes
from membench.planning.memory.device_memory import device_memory
from membench.planning.memory.liveness import host_peak_bytes
from membench.planning.rewrites.micro_batch import GraphAt
from membench.steps.plan import Runs, StepPlanner
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import Strategy
from membench.strategies.pytorch import PyTorch

MORE = 1.01
"""The part of the memory that is needed of what does not fit, where the numbers do not state that it is more."""


SEARCHED = 0.96
"""The part of the room that a method which plans for seconds is given first.

The allocator wastes about as much as is left, and another plan would cost as much time again.
"""


@dataclass(frozen=True)
class Target:
    """What a method is planned for.

    Attributes:
        cost: the device's cost model.
        budget_bytes: the most that the step's tensors may hold; None: what the device has.
    """

    device: DeviceProfile
    cost: RooflineCost
    budget_bytes: int | None
    update: UpdateOf | None

    @property
    def free_bytes(self) -> int:
        """What the context leaves of the device."""
        return self.device.free_bytes

    @property
    def room_bytes(self) -> int:
        """The most that the step's tensors may hold."""
        return self.free_bytes if self.budget_bytes is None else min(self.budget_bytes, self.free_bytes)

    def planner(
        self, graph_at: GraphAt, batch_size: int, strategy: Strategy, micro_batch: int | None = None
    ) -> StepPlanner:
        """Return what plans a step by a method; `micro_batch` None: as the method chooses."""
        return StepPlanner(graph_at, batch_size, strategy, self.cost, self.update, micro_batch)

    def excess_bytes(self, runs: Runs) -> int:
        """Return by how much a plan exceeds the budget or the device; 0: it fits."""
        allocated_bytes = max(run.schedule.peak_bytes for run in runs)
        if allocated_bytes > self.room_bytes:
            return allocated_bytes - self.room_bytes
        return device_memory(runs, self.device).excess_bytes

    def load(self, runs: Runs) -> float:
        """Return the part of the budget, or of the device where that is more, that a plan needs."""
        memory = device_memory(runs, self.device)
        return max(memory.allocated_bytes / self.room_bytes, memory.reserved_bytes / self.free_bytes)


def bound_bytes(graph: TaskGraph, strategy: Strategy) -> int:
    """Return a lower bound on what a method needs at any batch size (`membench.planning.memory.bounds`)."""
    if strategy.moves_weights:
        return 0
    return least_bytes(strategy.scheduled(graph))


@dataclass(frozen=True)
class PlainNumbers:
    """A step under plain PyTorch.

    Attributes:
        least_bytes: see `membench.planning.memory.bounds`.
        weight_bytes: size of all weights.
    """

    peak_bytes: int
    step_time_s: float
    fits: bool
    least_bytes: int
    weight_bytes: int

    @classmethod
    def of(cls, runs: Runs, target: Target) -> "PlainNumbers":
        """Return the numbers of a planned step."""
        graph = runs[-1].schedule.graph
        return cls(
            max(run.schedule.peak_bytes for run in runs),
            simulated_step(runs, target.cost).step_time_s,
            not target.excess_bytes(runs),
            least_bytes(graph),
            sum(block.size_bytes for block in graph.blocks if block.role is Role.WEIGHT),
        )


def plain_numbers(graph_at: GraphAt, batch_size: int, target: Target, micro_batch: int | None = None) -> PlainNumbers:
    """Plan plain PyTorch on a device that has the memory.

    Raises:
        UnsupportedModel: the batch cannot be divided.
    """
    return PlainNumbers.of(target.planner(graph_at, batch_size, PyTorch(), micro_batch).within(None), target)


def plan_method(
    graph_at: GraphAt,
    batch_size: int,
    strategy: Strategy,
    target: Target,
    micro_batch: int | None = None,
    *,
    unlimited: bool = True,
) -> AdvisedPlan:
    """Plan a method so that the device has the memory.

    Args:
        micro_batch: samples at a time; None: as the method chooses.
        unlimited: plan without a budget first, which may fit.

    Raises:
        InfeasibleSchedule, OutOfMemory: the method, or PyTorch's allocator for what it holds, needs more memory.
        UnsupportedStrategy, UnsupportedModel: the method cannot schedule this graph, or the batch cannot be divided.
    """
    runs, budget_bytes = _fitting(graph_at, batch_size, strategy, target, micro_batch, unlimited=unlimited)
    measured, memory = simulated_step(runs, target.cost).measure(), device_memory(runs, target.device)
    return AdvisedPlan(
        name=strategy.name,
        batch_size=batch_size,
        peak_bytes=memory.allocated_bytes,
        reserved_bytes=memory.reserved_bytes,
        used_bytes=memory.used_bytes,
        budget_bytes=budget_bytes,
        micro_batch=micro_batch,
        step_time_s=measured.step_time_s,
        copied_bytes=measured.offloaded_bytes + measured.prefetched_bytes,
        exposed_copy_time_s=measured.exposed_transfer_s,
        host_bytes=sum(host_peak_bytes(run.schedule) for run in runs),
        micro_batches=tuple((run.schedule.graph.batch_size, run.count) for run in runs),
        gap=dict(runs[0].schedule.decisions).get("gap"),
        is_exact=is_exact(runs),
        is_idle=len(runs) == runs[0].count == 1 and bool(runs[0].schedule.note),
        moves_weights=_moves_weights(runs),
        divides_batch=type(strategy).micro_batch_sizes is not Strategy.micro_batch_sizes,
    )


def _moves_weights(runs: Runs) -> bool:
    blocks = (block for run in runs for block in run.schedule.graph.blocks)
    return any(block.host_location and block.role not in ARGUMENT_ROLES for block in blocks)


def load(graph_at: GraphAt, batch_size: int, strategy: Strategy, target: Target, *, unlimited: bool = True) -> float:
    """Return the part of the memory that a method needs; above 1: it does not fit; exactly 1: it fits within a budget.

    Args:
        unlimited: plan without a budget first, which may fit.

    Raises:
        UnsupportedStrategy: the method cannot schedule this graph.
    """
    try:
        runs, budget_bytes = _fitting(graph_at, batch_size, strategy, target, unlimited=unlimited)
    except InfeasibleSchedule as refusal:
        return max(MORE, refusal.needed_bytes / max(1, refusal.budget_bytes))
    except OutOfMemory as refusal:
        return max(MORE, (refusal.needed_bytes or 0) / refusal.capacity_bytes)
    return min(1.0, target.load(runs)) if budget_bytes is None else 1.0


def load_without_budget(graph_at: GraphAt, batch_size: int, strategy: Strategy, target: Target) -> float:
    """Return the part of the memory that a method needs which is free to hold what it likes; see `load`.

    Raises:
        UnsupportedStrategy: the method cannot schedule this graph.
    """
    runs = target.planner(graph_at, batch_size, strategy).within(None)
    part = target.load(runs)
    return max(MORE, part) if target.excess_bytes(runs) else part


def _fitting(
    graph_at: GraphAt,
    batch_size: int,
    strategy: Strategy,
    target: Target,
    micro_batch: int | None = None,
    *,
    unlimited: bool = True,
) -> tuple[Runs, int | None]:
    """Return a plan that fits and its budget; None: it fits without one."""
    planner = target.planner(graph_at, batch_size, strategy, micro_batch)
    if unlimited and not target.excess_bytes(runs := planner.within(None)):
        return runs, None
    if strategy.searches_under_budget:
        with suppress(InfeasibleSchedule, OutOfMemory):
            return planner.fitting(target.excess_bytes, int(target.room_bytes * SEARCHED))
    return planner.fitting(target.excess_bytes, target.room_bytes)


def is_exact(runs: Runs) -> bool:
    """Return whether nothing is rounded or delayed, and batch norm takes the statistics of the whole batch."""
    is_whole = sum(run.count for run in runs) == 1
    tasks = (task for run in runs for task in run.schedule.graph.tasks)
    changed = (run.schedule.rounding or DELAYED_STEPS in dict(run.schedule.decisions) for run in runs)
    return not any(changed) and (is_whole or not any(task.kind is Kind.BATCH_NORM for task in tasks))
