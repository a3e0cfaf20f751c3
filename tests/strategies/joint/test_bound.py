"""The lower bound: below the fastest of all schedules, found by trying them, and above what no budget asks for."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.core.errors import InfeasibleSchedule
from membench.core.graph.task_graph import Block, HostLocation, Kind, Phase, Role, Task, TaskGraph
from membench.execution.simulation import step_time_s
from membench.planning.checking.validate import validate
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import Evaluator
from membench.planning.choices.problem import OFFLOAD, Problem
from membench.steps.plan import plan
from membench.strategies.joint.bound import relax
from membench.strategies.joint.strategy import Joint
from tests.helpers.planning.chains import chain_of_convolutions, chain_of_sizes
from tests.helpers.planning.costs import UnitCost
from tests.helpers.planning.fastest import Fastest


class WholeSeconds(UnitCost):
    """A second for a task, and a second per byte copied."""

    def launch_time_s(self, task: Task) -> float:
        return 0.0

    def task_time_s(self, task: Task) -> float:
        return 1.0


COST = WholeSeconds()
SMALL_CHAINS = st.lists(st.integers(1, 2), min_size=2, max_size=3)


def bound_s(graph: TaskGraph, budget_bytes: int) -> float | None:
    relaxed = relax(Problem(graph, COST, 1), budget_bytes)
    return relaxed.step_s if relaxed else None


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(sizes=SMALL_CHAINS, spare_bytes=st.integers(0, 3))
def test_the_bound_the_fastest_schedule_and_the_method_are_in_order(sizes: list[int], spare_bytes: int) -> None:
    graph = chain_of_sizes(sizes)
    budget_bytes = graph.lower_bound_bytes + spare_bytes
    fastest_s = Fastest(graph, COST, budget_bytes).step_s()
    bound = bound_s(graph, budget_bytes)
    if fastest_s is None:
        with pytest.raises(InfeasibleSchedule):
            plan(graph, Joint(), COST, budget_bytes)
        return
    assert bound is not None
    assert len(graph.tasks) <= bound <= fastest_s + 1e-6
    coarse = relax(Problem(graph, COST, 1), budget_bytes, moments=3)
    assert coarse and len(graph.tasks) <= coarse.step_s <= bound + 1e-6
    try:
        schedule = plan(graph, Joint(), COST, budget_bytes)
    except InfeasibleSchedule:
        return
    assert step_time_s(schedule, COST) >= fastest_s - 1e-6
    assert dict(schedule.decisions)["lower_bound_s"] <= fastest_s + 1e-6


def chain_with_a_weight_at_home(sizes: list[int], layer: int, updated: bool) -> TaskGraph:
    """Return a chain in which a layer has a weight of two bytes, in host memory before and after the step."""
    graph = chain_of_sizes(sizes)
    weight = len(graph.blocks)
    block = Block(weight, "weight", 2, Role.WEIGHT, layer, HostLocation(weight))
    tasks = [
        replace(task, reads=(*task.reads, weight))
        if task.layer == layer and task.phase in (Phase.FORWARD, Phase.BACKWARD)
        else task
        for task in graph.tasks
    ]
    if updated:
        tasks.append(Task(len(tasks), "update", Kind.OTHER, Phase.UPDATE, layer, (weight,), (weight,), ()))
    return replace(graph, blocks=(*graph.blocks, block), tasks=tuple(tasks))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(layer=st.integers(0, 1), updated=st.booleans(), spare_bytes=st.integers(0, 3), size=st.integers(1, 2))
def test_the_bound_holds_where_a_weight_comes_from_the_host_and_returns(
    layer: int, updated: bool, spare_bytes: int, size: int
) -> None:
    graph = chain_with_a_weight_at_home([size, 1], layer, updated)
    budget_bytes = graph.lower_bound_bytes + spare_bytes
    fastest_s = Fastest(graph, COST, budget_bytes).step_s()
    bound = bound_s(graph, budget_bytes)
    if fastest_s is None:
        return
    assert bound is not None
    assert len(graph.tasks) <= bound <= fastest_s + 1e-6
    evaluator = Evaluator(Problem(graph, COST, 1))
    everything = [OFFLOAD] * len(evaluator.problem.units)
    if spare_bytes >= evaluator.needed_bytes(everything)[0] - graph.lower_bound_bytes:
        plan = evaluator.plan(everything, budget_bytes)
        assert plan.step_s >= fastest_s - 1e-6
        validate(emit("joint", plan, budget_bytes), budget_bytes=budget_bytes)


def test_a_weight_without_room_is_waited_for_before_the_first_task_and_behind_the_last() -> None:
    graph = chain_with_a_weight_at_home([1, 4], 0, True)
    bound, two_copies_s = bound_s(graph, graph.lower_bound_bytes), 2 + 2
    assert bound is not None
    assert bound >= len(graph.tasks) + two_copies_s - 1e-6


def test_the_bound_rises_as_the_budget_falls_and_ends_where_nothing_fits() -> None:
    graph = chain_of_convolutions(6, normalized=True)
    slow_link = UnitCost()
    problem = Problem(graph, slow_link, 1)
    most = sum(block.size_bytes for block in graph.blocks)
    budgets = [graph.lower_bound_bytes - 1, graph.lower_bound_bytes + 40_000, most // 2, most]
    found = [relax(problem, budget_bytes) for budget_bytes in budgets]
    assert found[0] is None
    times = [relaxed.step_s for relaxed in found[1:] if relaxed]
    assert times == sorted(times, reverse=True)
    assert times[0] > problem.compute_s * 1.01
    assert times[-1] == pytest.approx(problem.compute_s)


@pytest.mark.slow
@settings(max_examples=10, deadline=None, derandomize=True)
@given(length=st.integers(6, 12), share=st.floats(0.2, 0.9), moments=st.integers(2, 12))
def test_fewer_moments_lower_the_bound(length: int, share: float, moments: int) -> None:
    graph = chain_of_convolutions(length, normalized=True)
    problem = Problem(graph, UnitCost(), 1)
    most = sum(block.size_bytes for block in graph.blocks)
    budget_bytes = int(graph.lower_bound_bytes * (1 - share) + most * share)
    fine, coarse = relax(problem, budget_bytes), relax(problem, budget_bytes, moments=moments)
    if fine is None:
        return
    assert coarse is not None
    assert problem.compute_s * (1 - 1e-9) <= coarse.step_s <= fine.step_s * (1 + 1e-9)


class SlowToTheHost(UnitCost):
    """Sixteen seconds to copy a block of that size to the host, and a tenth of a second to copy it back."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes

    def offload_time_s(self, size_bytes: int) -> float:
        return 16 * size_bytes / self._block_bytes

    def prefetch_time_s(self, size_bytes: int) -> float:
        return size_bytes / self._block_bytes / 10


def test_what_is_made_again_to_be_copied_to_the_host_takes_the_time_of_the_link() -> None:
    graph = chain_of_convolutions(12, normalized=True)
    most = sum(block.size_bytes for block in graph.blocks)
    cost = SlowToTheHost(max(block.size_bytes for block in graph.blocks if block.is_transient))
    bound = relax(Problem(graph, cost, 1), int(graph.lower_bound_bytes * 0.98 + most * 0.02))
    assert bound
    assert bound.step_s > 296, "294.1 s if these copies to the host take no time"
