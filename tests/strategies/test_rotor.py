"""Rotor: nothing is recomputed before memory lacks, and then as little as a search over all orders finds."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from membench.steps.plan import plan
from membench.strategies.chain.stages import LONGEST, Chain
from membench.strategies.pofo import Pofo
from membench.strategies.rotor import Rotor
from tests.helpers.planning.chains import INPUT_BYTES, chain_of_convolutions, chain_of_sizes, graph_of
from tests.helpers.planning.costs import UnitCost, forward_s
from tests.helpers.planning.shortest import chains, check_free, check_shortest

PERSISTENCE = 1.25
"""How much longer than the shortest order one may take in which what is stored stays until it is used."""


def test_nothing_is_recomputed_within_eagers_peak_or_without_a_budget() -> None:
    check_free(Rotor())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(layers=chains(7), share=st.floats(0, 1))
def test_a_search_over_all_orders_finds_none_that_is_much_faster(layers: list[tuple[int, int]], share: float) -> None:
    check_shortest(Rotor(), layers, share, times_longer=PERSISTENCE)


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


class Skipping(nn.Module):
    """The first layer's output skips over all others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        layers = [(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()) for _ in range(6)]
        self.inner = nn.Sequential(*(layer for pair in layers for layer in pair))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x * self.inner(x))


def test_a_stage_ends_where_one_block_is_handed_on() -> None:
    with torch.device("meta"):
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
        graph = graph_of(nn.Sequential(nn.Conv2d(8, 8, 1), *(Residual() for _ in range(8)), *head), 8, 16)
    layers = [
        [{graph.layers[graph.tasks[index].layer] for index in tasks} for tasks in (stage.forward, stage.backward)]
        for stage in Chain(graph, UnitCost()).stages[:3]
    ]
    first, second = ({f"{number}.inner.{n}" for n in range(3)} for number in (1, 2))
    assert layers[0] == [{"0"}, {"0"}]
    for (forward, backward), inner in zip(layers[1:], (first, second), strict=True):
        assert inner < forward
        assert inner <= backward <= forward


def test_what_skips_over_a_large_stage_is_kept_so_that_it_is_cut() -> None:
    with torch.device("meta"):
        graph = graph_of(Skipping(), 8, 16)
    chain = Chain(graph, UnitCost())
    (skipping,) = (block for block in graph.blocks if block.name.startswith("first:"))
    assert chain.fixed_bytes >= graph.external_bytes + skipping.size_bytes
    assert len(chain.stages) > 8
    peak_bytes = plan(graph, Rotor(), UnitCost(), None).peak_bytes
    for method in (Rotor(), Pofo()):
        budget_bytes = round(0.65 * peak_bytes)
        assert plan(graph, method, UnitCost(), budget_bytes).peak_bytes <= budget_bytes
