"""GeePS: two halves of one pool, copies parallel to computation, memory that does not grow with depth."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    COPY_STREAM,
    Compute,
    Offload,
    Prefetch,
    RepeatedSchedule,
    Schedule,
)
from membench.core.graph.task_graph import EXTERNAL_ROLES, RESULT_ROLES
from membench.core.graph.timeline import Span
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import live_bytes
from membench.steps.plan import plan
from membench.steps.simulated_step import simulated_step
from membench.strategies.geeps import COPY_BACK_STREAM, GeePS
from tests.helpers.networks.contract import COST, reference
from tests.helpers.planning.chains import chain_of_sizes
from tests.helpers.planning.costs import UnitCost


def in_pool_bytes(schedule: Schedule) -> int:
    return schedule.peak_bytes - schedule.graph.external_bytes


@given(st.lists(st.integers(1, 1000), min_size=3, max_size=12))
def test_the_pool_of_a_chain_is_twice_its_largest_layer(activation_bytes: list[int]) -> None:
    schedule = GeePS().schedule(chain_of_sizes(activation_bytes), UnitCost(), None)
    validate(schedule)
    # Backward, a layer accesses the activation that it reads and two gradients; the loss an activation and its
    # gradient.
    accesses = [before + own + before for before, own in pairwise(activation_bytes)]
    assert in_pool_bytes(schedule) == 2 * max(*accesses, 2 * activation_bytes[-1])
    work = zip(schedule.instructions, live_bytes(schedule), strict=True)
    assert {held for item, held in work if isinstance(item, Compute | Prefetch)} == {schedule.peak_bytes}


def test_the_peak_does_not_grow_with_depth() -> None:
    peaks = {GeePS().schedule(chain_of_sizes([10] * depth), UnitCost(), None).peak_bytes for depth in (3, 10, 100)}
    assert len(peaks) == 1


def test_each_activation_of_a_chain_is_offloaded_and_prefetched_once() -> None:
    schedule = GeePS().schedule(chain_of_sizes([10] * 8), UnitCost(), None)
    names = schedule.graph.blocks
    out = [names[item.block].name for item in schedule.instructions if isinstance(item, Offload)]
    back = [names[item.block].name for item in schedule.instructions if isinstance(item, Prefetch)]
    assert out == [f"activation{i}" for i in range(7)]  # the last one is still there when the loss is computed
    assert back == out[::-1]


def test_copies_overlap_with_the_computation_of_their_neighbours() -> None:
    depth = 12
    schedule = GeePS().schedule(chain_of_sizes([1] * depth), UnitCost(), None)  # a copy takes 1 s, a task 2 s
    step = simulated_step((RepeatedSchedule(schedule),), UnitCost())
    copies = [span for span in step.timelines[0].spans if span.stream in (COPY_STREAM, COPY_BACK_STREAM)]
    tasks = [span for span in step.timelines[0].spans if span.stream == COMPUTE_STREAM]
    assert len(copies) == 2 * (depth - 1)
    assert all(any(_overlap_s(copy, task) > 0 for task in tasks) for copy in copies)
    assert step.timelines[0].step_time_s == pytest.approx(2.5 * len(schedule.graph.tasks))  # with its launch


def _overlap_s(first: Span, second: Span) -> float:
    return min(first.end_s, second.end_s) - max(first.start_s, second.start_s)


def test_a_slow_copy_delays_the_layer_after_the_one_that_it_overlaps_with() -> None:
    schedule = GeePS().schedule(chain_of_sizes([4] * 5), UnitCost(), None)  # a copy takes 4 s
    step = simulated_step((RepeatedSchedule(schedule),), UnitCost())
    copies = sum(isinstance(item, Offload | Prefetch) for item in schedule.instructions)
    alone = len(schedule.graph.tasks) - copies  # a task overlaps with one copy or none
    assert step.timelines[0].step_time_s == pytest.approx(2.5 * alone + 4 * copies)


def test_a_shortcut_comes_back_for_its_forward_reader_without_a_second_copy_out() -> None:
    schedule = plan(reference("resnet18").captured.graph, GeePS(), COST, None)
    last_forward = max(
        position
        for position, item in enumerate(schedule.instructions)
        if isinstance(item, Compute) and item.task == schedule.graph.forward_layers[-1].tasks[-1].index
    )
    back_early = [i.block for i in schedule.instructions[:last_forward] if isinstance(i, Prefetch)]
    out = [i.block for i in schedule.instructions if isinstance(i, Offload)]
    assert back_early
    assert len(out) == len(set(out))
    assert set(back_early) <= set(out)


@pytest.mark.parametrize("network", ["resnet50", "googlenet", "densenet", "vit"])
def test_neighbours_fit_the_other_half(network: str) -> None:
    schedule = plan(reference(network).captured.graph, GeePS(), COST, None)
    graph = schedule.graph
    moves = [block.role not in EXTERNAL_ROLES | RESULT_ROLES for block in graph.blocks]
    largest_bytes = max(
        sum(graph.blocks[block].size_bytes for block in layer.touches if moves[block])
        for layer in graph.forward_layers + graph.backward_layers
    )
    results_bytes = sum(block.size_bytes for block in graph.blocks if block.role in RESULT_ROLES)
    assert in_pool_bytes(schedule) == 2 * largest_bytes + results_bytes + graph.largest_workspace_bytes
