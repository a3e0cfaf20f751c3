"""Weights that stay gathered, as a rewrite: the graph of a rank that was told to keep them."""

import pytest

from membench.core.graph.collective import CollectiveKind
from membench.core.graph.task_graph import TaskGraph
from membench.execution.simulation import step_time_s
from membench.planning.parallel.gathering import gathered_once
from membench.steps.plan import plan
from membench.strategies.base import find_strategy
from tests.helpers.distributed.sharded import Collectives, sharded_graph
from tests.helpers.planning.chains import chain_of_sizes

COST = Collectives(1.0)


def gathers(graph: TaskGraph) -> int:
    return sum(
        task.collective is not None and task.collective.kind is CollectiveKind.ALL_GATHER for task in graph.tasks
    )


@pytest.mark.parametrize("copies_out", [False, True])
@pytest.mark.parametrize("strategy", ["pytorch", "eager"])
def test_it_is_the_step_without_resharding_after_the_forward_pass(copies_out: bool, strategy: str) -> None:
    asked_for = sharded_graph(copies_out=copies_out, reshard_after_forward=False)
    rewritten = gathered_once(sharded_graph(copies_out=copies_out))
    assert gathers(rewritten) == gathers(asked_for) < gathers(sharded_graph(copies_out=copies_out))
    assert [task.name for task in rewritten.tasks] == [task.name for task in asked_for.tasks]
    found, expected = (plan(g, find_strategy(strategy)(), COST, None) for g in (rewritten, asked_for))
    assert found.peak_bytes == expected.peak_bytes
    assert step_time_s(found, COST) == step_time_s(expected, COST)


def test_a_graph_without_a_second_gather_stays_as_it_is() -> None:
    graph = chain_of_sizes([1, 2])
    assert gathered_once(graph) is graph
