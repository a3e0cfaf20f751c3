"""The choice of micro-batches: regular sizes, windows of tasks, and the search."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.core.errors import MembenchError
from membench.core.graph.task_graph import EXTERNAL_ROLES, RESULT_ROLES, TaskGraph
from membench.planning.rewrites.micro_batch import (
    fitted_sizes,
    micro_batch_size,
    regular_sizes,
    sizes_around,
    window_bytes,
)
from tests.helpers.planning.chains import ACTIVATION_BYTES, chain_of_batch
from tests.helpers.planning.costs import UnitCost


def by_definition(graph: TaskGraph, window: float) -> int:
    """Equation 8, window by window."""
    stays = EXTERNAL_ROLES | RESULT_ROLES
    length = max(1, int(window * len(graph.tasks)))
    worst = 0
    for start in range(max(1, len(graph.tasks) - length + 1)):
        tasks = graph.tasks[start : start + length]
        blocks = {block for task in tasks for block in (*task.reads, *task.writes)}
        needed = sum(graph.blocks[b].size_bytes for b in blocks if graph.blocks[b].role not in stays)
        worst = max(worst, needed + max(task.workspace_bytes for task in tasks))
    return worst + sum(block.size_bytes for block in graph.blocks if block.role in stays)


@settings(deadline=None)
@given(st.floats(0.01, 1.0), st.lists(st.integers(0, 5 * ACTIVATION_BYTES), min_size=14, max_size=14))
def test_a_window_needs_its_distinct_blocks_its_largest_workspace_and_what_stays(
    window: float, workspaces: list[int]
) -> None:
    graph = chain_of_batch(1)
    tasks = [replace(t, workspace_bytes=size) for t, size in zip(graph.tasks, workspaces, strict=True)]
    graph = replace(graph, tasks=tuple(tasks))
    assert window_bytes(graph, window) == by_definition(graph, window)


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [(1, [1]), (7, [7, 4, 2, 1]), (100, [100, 64, 32, 16, 8, 4, 2, 1]), (256, [256, 192, 128, 64, 32, 16, 8, 4, 2, 1])],
)
def test_micro_batches_are_multiples_of_64_or_powers_of_two(batch_size: int, expected: list[int]) -> None:
    assert regular_sizes(batch_size) == expected


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 100_000))
def test_the_largest_micro_batch_whose_windows_fit_is_tried_first_and_then_every_smaller_one(
    batch_size: int, budget_bytes: int
) -> None:
    sizes = list(fitted_sizes(chain_of_batch, batch_size, UnitCost(), budget_bytes))
    fitting = [size for size in regular_sizes(batch_size) if window_bytes(chain_of_batch(size)) <= budget_bytes]
    assert sizes[0] == (fitting[0] if fitting else 1)
    assert sizes == [size for size in regular_sizes(batch_size) if size <= sizes[0]]


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 100_000))
def test_sizes_around_are_all_regular_ones_and_meet_at_the_fitted_one(batch_size: int, budget_bytes: int) -> None:
    fitted = next(iter(fitted_sizes(chain_of_batch, batch_size, UnitCost(), budget_bytes)))
    larger, smaller = sizes_around(chain_of_batch, batch_size, UnitCost(), budget_bytes)
    assert larger[-1] == fitted
    assert [*larger, *smaller] == regular_sizes(batch_size)


def test_without_a_budget_the_batch_stays_whole() -> None:
    assert next(iter(fitted_sizes(chain_of_batch, 100, UnitCost(), None))) == 100


@pytest.mark.parametrize("given", [1, 8, "3"])
def test_a_micro_batch_is_a_number_of_samples(given: int | str) -> None:
    assert micro_batch_size(given, 8) == int(given)


@pytest.mark.parametrize("given", [0, 9, -1, 2.0, True, "many"])
def test_a_micro_batch_that_is_none_is_refused(given: float | str) -> None:
    with pytest.raises(MembenchError, match="give a number of samples from 1 to 8"):
        micro_batch_size(given, 8)
