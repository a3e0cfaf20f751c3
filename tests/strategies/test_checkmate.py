"""Checkmate: as little is recomputed as a search over all orders finds; graphs that are too large are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.core.errors import UnsupportedStrategy
from membench.steps.plan import plan
from membench.strategies.checkmate import Checkmate, layer_ends
from membench.strategies.rotor import Rotor
from tests.helpers.planning.chains import INPUT_BYTES, chain_of_convolutions, chain_of_sizes
from tests.helpers.planning.costs import UnitCost, forward_s
from tests.helpers.planning.shortest import chains, check_free, check_shortest


def test_nothing_is_recomputed_within_eagers_peak_or_without_a_budget() -> None:
    check_free(Checkmate())


@settings(max_examples=20, deadline=None, derandomize=True)
@given(layers=chains(5), share=st.floats(0, 1))
def test_a_search_over_all_orders_finds_none_that_is_faster(layers: list[tuple[int, int]], share: float) -> None:
    check_shortest(Checkmate(), layers, share)


@pytest.mark.parametrize("share", [0.6, 0.75, 0.9])
def test_on_a_chain_of_convolutions_it_is_at_least_as_fast_as_rotor(share: float) -> None:
    graph, cost = chain_of_convolutions(3, normalized=True), UnitCost()
    budget_bytes = round(share * plan(graph, Checkmate(), cost, None).peak_bytes)
    schedules = [plan(graph, method, cost, budget_bytes) for method in (Checkmate(), Rotor())]
    assert forward_s(schedules[0], cost) <= forward_s(schedules[1], cost)


def test_a_graph_of_too_many_nodes_is_refused_with_their_number() -> None:
    graph = chain_of_sizes([1] * 9)
    with pytest.raises(UnsupportedStrategy, match="at most 8 nodes, and this graph has 10 layers in 10 stages"):
        plan(graph, Checkmate(most_nodes=8), UnitCost(), INPUT_BYTES + 5)


def test_a_solver_without_time_is_named() -> None:
    with pytest.raises(UnsupportedStrategy, match="found no schedule of 10 nodes in 0 s"):
        plan(chain_of_sizes([1] * 9), Checkmate(time_limit_s=0), UnitCost(), INPUT_BYTES + 5)


def test_a_node_does_not_end_between_a_block_and_what_is_written_into_it() -> None:
    graph = chain_of_convolutions(2, normalized=True)
    forward = [task for task in graph.tasks if task.phase.value != "backward"]
    for end in layer_ends(graph):
        made = {block for task in forward[:end] for block in task.creates}
        assert made.isdisjoint(block for task in forward[end:] for block in task.writes)
