"""Rotor: nothing is recomputed before memory lacks, and then as little as a search over all orders finds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from membench.core.errors import InfeasibleSchedule
from membench.core.schedule import Offload
from membench.steps.plan import plan
from membench.strategies.chain.stages import LONGEST, Chain
from membench.strategies.rotor import Rotor
from tests.helpers.chains import INPUT_BYTES, chain_of_convolutions, chain_of_sizes, graph_of
from tests.helpers.costs import CostOfLayers, UnitCost, forward_s
from tests.helpers.shortest import least_recomputing_s


def test_nothing_is_recomputed_within_eagers_peak_or_without_a_budget() -> None:
    graph = chain_of_sizes([3, 1, 4, 1, 5])
    free = plan(graph, Rotor(), UnitCost(), None)
    assert plan(graph, Rotor(), UnitCost(), free.peak_bytes).graph == free.graph == graph


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    layers=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=2, max_size=7),
    share=st.floats(0, 1),
)
def test_a_search_over_all_orders_finds_none_that_is_faster(
    layers: list[tuple[int, int]], share: float
) -> None:
    sizes, times = [size for size, _ in layers], [float(time) for _, time in layers]
    graph, cost = chain_of_sizes(sizes), CostOfLayers(times)
    peak_bytes = plan(graph, Rotor(), cost, None).peak_bytes
    lowest_bytes = graph.lower_bound_bytes
    budget_bytes = round(lowest_bytes + share * (peak_bytes - lowest_bytes))
    expected_s = least_recomputing_s(sizes, times, budget_bytes - INPUT_BYTES)
    try:
        schedule = plan(graph, Rotor(), cost, budget_bytes)
    except InfeasibleSchedule:
        assert expected_s == float("inf")
        return
    assert not any(isinstance(instruction, Offload) for instruction in schedule.instructions)
    assert forward_s(schedule, cost) == pytest.approx(expected_s)


def test_a_stage_is_recomputed_more_than_once_where_memory_is_least() -> None:
    graph = chain_of_sizes([1] * 12)
    schedule = plan(graph, Rotor(), UnitCost(), INPUT_BYTES + 5)
    again = [task.name for task in schedule.graph.tasks if task.is_recomputed]
    assert max(map(again.count, again)) > 1
    assert schedule.peak_bytes <= INPUT_BYTES + 5


def test_more_memory_takes_no_more_time() -> None:
    graph = chain_of_convolutions(9, normalized=True)
    peak_bytes = plan(graph, Rotor(), UnitCost(), None).peak_bytes
    times = [
        forward_s(plan(graph, Rotor(), UnitCost(), round(share * peak_bytes)), UnitCost())
        for share in (0.6, 0.7, 0.8, 0.9, 1.0)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_neighbours_of_a_long_chain_are_joined_into_few_stages() -> None:
    graph = chain_of_sizes([1] * 4 * LONGEST)
    assert LONGEST // 2 < len(Chain(graph, UnitCost()).stages) <= LONGEST
    budget_bytes = plan(graph, Rotor(), UnitCost(), None).peak_bytes // 4
    assert plan(graph, Rotor(), UnitCost(), budget_bytes).peak_bytes <= budget_bytes


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def test_a_stage_ends_where_one_block_is_handed_on() -> None:
    with torch.device("meta"):
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
        graph = graph_of(nn.Sequential(nn.Conv2d(8, 8, 1), Residual(), Residual(), *head), 8, 16)
    layers = [
        [
            {graph.layers[graph.tasks[index].layer] for index in tasks}
            for tasks in (stage.forward, stage.backward)
        ]
        for stage in Chain(graph, UnitCost()).stages[:3]
    ]
    first, second = ({f"{number}.inner.{n}" for n in range(3)} for number in (1, 2))
    assert layers[0] == [{"0"}, {"0"}]
    for (forward, backward), inner in zip(layers[1:], (first, second), strict=True):
        assert inner < forward
        assert inner <= backward <= forward
