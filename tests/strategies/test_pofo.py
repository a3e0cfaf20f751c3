"""POFO: on a slow link it is rotor, on a fast one it recomputes nothing, and between it is faster than both alone."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from membench.backends.simulated import SimulatedBackend
from membench.capture.capture import capture
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import CHANGES_NOTHING, Offload, Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.step.workload import Workload
from membench.execution.executor import execute
from membench.steps.plan import plan
from membench.strategies.pofo import Pofo
from membench.strategies.rotor import Rotor
from tests.helpers.planning.chains import chain_of_convolutions, chain_of_sizes
from tests.helpers.planning.costs import UnitCost


class LinkOf(UnitCost):
    """A link of some seconds per byte."""

    def __init__(self, seconds_per_byte: float) -> None:
        self._seconds_per_byte = seconds_per_byte

    def offload_time_s(self, size_bytes: int) -> float:
        return size_bytes * self._seconds_per_byte

    prefetch_time_s = offload_time_s


CHAIN = chain_of_sizes([4, 3, 4, 5, 4, 4, 3, 4, 4])


def step_s(schedule: Schedule, cost: UnitCost) -> float:
    return execute(schedule, SimulatedBackend(schedule.graph, cost)).step_time_s


def budgets(graph: TaskGraph) -> list[int]:
    peak_bytes = plan(graph, Pofo(), UnitCost(), None).peak_bytes
    return [round(share * peak_bytes) for share in (0.5, 0.6, 0.7, 0.8, 0.9)]


def has_copies(schedule: Schedule) -> bool:
    return any(isinstance(instruction, Offload) for instruction in schedule.instructions)


def has_recomputation(schedule: Schedule) -> bool:
    return any(task.is_recomputed for task in schedule.graph.tasks)


def test_nothing_leaves_within_eagers_peak_or_without_a_budget() -> None:
    free = plan(CHAIN, Pofo(), UnitCost(), None)
    assert free.note == CHANGES_NOTHING
    assert plan(CHAIN, Pofo(), UnitCost(), free.peak_bytes) == free


@pytest.mark.parametrize("budget_bytes", budgets(CHAIN))
def test_on_a_fast_link_nothing_is_recomputed(budget_bytes: int) -> None:
    cost = LinkOf(1e-6)
    schedule = plan(CHAIN, Pofo(), cost, budget_bytes)
    assert has_copies(schedule)
    assert not has_recomputation(schedule)
    assert step_s(schedule, cost) == pytest.approx(step_s(plan(CHAIN, Pofo(), cost, None), cost), rel=1e-4)


@pytest.mark.parametrize("budget_bytes", budgets(CHAIN))
def test_on_a_slow_link_it_is_as_fast_as_rotor(budget_bytes: int) -> None:
    cost = LinkOf(1e6)
    schedule = plan(CHAIN, Pofo(), cost, budget_bytes)
    assert not has_copies(schedule)
    assert step_s(schedule, cost) <= step_s(plan(CHAIN, Rotor(), cost, budget_bytes), cost)


@pytest.mark.slow
def test_both_together_are_faster_than_recomputation_alone() -> None:
    cost, faster = LinkOf(1e-3), []
    for graph in (CHAIN, chain_of_convolutions(9, normalized=True)):
        for budget_bytes in budgets(graph):
            pofo = step_s(plan(graph, Pofo(), cost, budget_bytes), cost)
            faster.append(pofo / step_s(plan(graph, Rotor(), cost, budget_bytes), cost))
    assert max(faster) <= 1 + 1e-9
    assert min(faster) < 0.95


def test_the_refusal_names_bytes_that_suffice() -> None:
    with pytest.raises(InfeasibleSchedule) as refusal:
        plan(CHAIN, Pofo(), UnitCost(), CHAIN.lower_bound_bytes - 1)
    needed_bytes = refusal.value.needed_bytes
    assert plan(CHAIN, Pofo(), UnitCost(), needed_bytes).peak_bytes <= needed_bytes


@pytest.mark.parametrize("cost", [LinkOf(1e-6), LinkOf(1e-3), LinkOf(1e6)])
def test_it_needs_at_most_what_rotor_needs_and_then_keeps_it(cost: LinkOf) -> None:
    needs = []
    for strategy in (Pofo(), Rotor()):
        with pytest.raises(InfeasibleSchedule) as refusal:
            plan(CHAIN, strategy, cost, 1)
        needs.append(refusal.value.needed_bytes)
    assert needs[0] <= needs[1]
    assert plan(CHAIN, Pofo(), cost, needs[0]).peak_bytes <= needs[0]


def test_a_program_that_checkpoints_is_recomputed_once_more() -> None:
    """Its tasks that run again by themselves are not taken for those that the method runs again."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

        def forward(self, images: Tensor) -> Tensor:
            features = checkpoint(lambda x: self.first(x).relu(), images.sin(), use_reentrant=False)
            return self.last(features.mean((2, 3)))  # type: ignore[no-any-return]

    images, classes = (torch.randn(4, 3, 12, 12),), (torch.arange(4),)
    graph = capture(Workload("net", Checkpointed(), nn.functional.cross_entropy, images, classes)).graph
    with pytest.raises(InfeasibleSchedule) as refusal:
        plan(graph, Pofo(), LinkOf(1.0), graph.lower_bound_bytes)
    budget_bytes = refusal.value.needed_bytes
    assert plan(graph, Pofo(), LinkOf(1.0), budget_bytes).peak_bytes <= budget_bytes
