"""Queries on a graph, on chains of random sizes and kinds."""

import pickle
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from membench.core.graph.task_graph import Kind, TaskGraph
from tests.helpers.planning.chains import chain_of_kinds, chain_of_sizes
from tests.helpers.planning.four_tasks import four_tasks, parallel_tasks

KINDS = st.lists(st.sampled_from([Kind.CONVOLUTION, Kind.RELU, Kind.POOLING]), min_size=1, max_size=5)
GRAPHS = st.one_of(
    st.lists(st.integers(1, 1000), min_size=1, max_size=6).map(chain_of_sizes),
    KINDS.map(lambda kinds: chain_of_kinds(*kinds)),
    st.sampled_from([four_tasks(), parallel_tasks()]),
)


@given(GRAPHS)
def test_no_task_touches_a_block_after_its_last_use(graph: TaskGraph) -> None:
    for block, last in enumerate(graph.last_use):
        touching = [task.index for task in graph.tasks if block in (*task.reads, *task.writes)]
        assert last == max(touching, default=-1)


@given(GRAPHS, st.integers(0, 100))
def test_a_task_needs_the_external_blocks_and_what_it_touches_and_its_workspace(graph: TaskGraph, more: int) -> None:
    graph = replace(graph, overhead_bytes=more)
    external = {block.index for block in graph.blocks if block.is_external}
    for task, needed_bytes in zip(graph.tasks, graph.needed_bytes, strict=True):
        together = graph.size_bytes(external | {*task.reads, *task.writes})
        assert needed_bytes == more + together + task.workspace_bytes
    assert graph.lower_bound_bytes == max(graph.needed_bytes)
    assert graph.external_bytes == more + graph.size_bytes(external)


@given(GRAPHS)
def test_a_task_of_the_host_needs_only_what_is_there_anyway(graph: TaskGraph) -> None:
    tasks = tuple(replace(task, on_host=True, workspace_bytes=0) for task in graph.tasks)
    assert set(replace(graph, tasks=tasks).needed_bytes) == {graph.external_bytes}


@given(GRAPHS)
def test_layers_of_both_passes_have_each_task_once_and_in_order(graph: TaskGraph) -> None:
    layers = (*graph.forward_layers, *graph.backward_layers)
    assert tuple(task for layer in layers for task in layer.tasks) == graph.tasks
    assert all(task.layer == layer.layer for layer in layers for task in layer.tasks)
    for passes in (graph.forward_layers, graph.backward_layers):
        assert all(one.layer != other.layer for one, other in pairwise(passes))
    for layer in layers:
        assert layer.touches == {block for task in layer.tasks for block in (*task.reads, *task.writes)}
        assert layer.creates <= layer.writes


@given(GRAPHS)
def test_a_copy_by_pickle_is_equal_and_carries_no_answers(graph: TaskGraph) -> None:
    size_bytes = len(pickle.dumps(graph))
    assert graph.needed_bytes and graph.forward_layers
    copy = pickle.loads(pickle.dumps(graph))
    assert copy == graph and len(pickle.dumps(graph)) == size_bytes
