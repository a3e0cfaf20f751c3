"""Micro-batches layer by layer: the same tasks on the same contents, and each weight is needed once in each pass."""

from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from membench.capture.capture import capture
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.task_graph import ARGUMENT_ROLES, Phase, Role, TaskGraph
from membench.core.step.workload import Workload
from membench.planning.rewrites.layer_by_layer import (
    check_draws_nothing,
    layer_by_layer,
    runs_of_layers,
    together,
    with_own_sums,
)
from tests.helpers.networks.blocks import blocks_workload
from tests.helpers.steps.updates import captured as captured_update

BLOCKS = 3
OPTIONS = st.fixed_dictionaries({"shared": st.booleans(), "statistics": st.booleans()})
COUNTS = st.integers(2, 5)


@cache
def micro_batch(shared: bool = False, statistics: bool = False) -> TaskGraph:
    work = blocks_workload(4, BLOCKS, shared=shared, statistics=statistics)
    return capture(work.of_size(2)).graph


def both(count: int, **options: bool) -> tuple[TaskGraph, TaskGraph]:
    """Return a step one after another, and layer by layer."""
    one_after_another = together(micro_batch(**options), count)
    return one_after_another, layer_by_layer(one_after_another)


def history(graph: TaskGraph) -> dict[str, list[tuple[int, tuple[str, ...]]]]:
    """Return for each task the writers, in order, of each block that it reads, before it."""
    writers: defaultdict[int, list[str]] = defaultdict(list)
    found = {}
    for task in graph.tasks:
        found[f"{task.name} {task.writes}"] = [(block, tuple(writers[block])) for block in task.reads]
        for block in task.writes:
            writers[block].append(task.name)
    return found


@settings(max_examples=12, deadline=None)
@given(count=COUNTS, options=OPTIONS)
def test_each_micro_batch_has_the_tasks_of_one(count: int, options: dict[str, bool]) -> None:
    one, (_, graph) = micro_batch(**options), both(count, **options)
    for each, whole in ((one, graph), (one.plain, graph.plain)):
        assert each is not None and whole is not None
        expected = [f"micro-batch {number}: {task.name}" for number in range(count) for task in each.tasks]
        assert Counter(task.name for task in whole.tasks) == Counter(expected)
        for number in range(count):
            names = [task.name for task in whole.tasks if task.name.startswith(f"micro-batch {number}: ")]
            assert names == expected[number * len(each.tasks) : (number + 1) * len(each.tasks)]
        assert whole.batch_size == count * each.batch_size and whole.micro_batch_size == each.batch_size
        assert [task.index for task in whole.tasks] == list(range(len(whole.tasks)))


@settings(max_examples=12, deadline=None)
@given(count=COUNTS, options=OPTIONS)
def test_each_task_reads_what_it_would_read_one_after_another(count: int, options: dict[str, bool]) -> None:
    one_after_another, graph = both(count, **options)
    for ordered, other in ((one_after_another, graph), (one_after_another.plain, graph.plain)):
        assert ordered is not None and other is not None
        assert history(ordered) == history(other)


@settings(max_examples=12, deadline=None)
@given(count=COUNTS, options=OPTIONS)
def test_blocks_are_those_of_one_micro_batch_and_the_callers_are_shared(count: int, options: dict[str, bool]) -> None:
    one, (_, graph) = micro_batch(**options), both(count, **options)
    sizes = Counter[Role]()
    for block in one.blocks:
        is_own = not block.is_external or block.role in ARGUMENT_ROLES
        sizes[block.role] += block.size_bytes * (count if is_own else 1)
    assert sizes == Counter({role: sum(b.size_bytes for b in graph.blocks if b.role is role) for role in sizes})
    assert all(block.index == index for index, block in enumerate(graph.blocks))
    assert all(len(parts) == len(set(parts)) == count for parts in graph.parts)
    assert [parts[0] for parts in graph.parts] == [b.index for b in one.blocks if b.role in ARGUMENT_ROLES]


@settings(max_examples=8, deadline=None)
@given(count=COUNTS)
def test_weights_of_a_layer_are_needed_once_in_each_pass(count: int) -> None:
    one_after_another, graph = both(count)

    def visits(ordered: TaskGraph) -> list[int]:
        runs = runs_of_layers(ordered, ordered.tasks)
        weights = [b.index for b in ordered.blocks if b.role is Role.WEIGHT and b.name.startswith("blocks.")]
        return [sum(any(weight in task.reads for task in run) for run in runs) for weight in weights]

    assert max(visits(graph)) == 2
    assert max(visits(one_after_another)) == 2 * count


def test_head_and_loss_are_computed_for_one_micro_batch_after_another() -> None:
    _, graph = both(3)
    head = next(run for run in runs_of_layers(graph, graph.tasks) if any(task.phase is Phase.LOSS for task in run))
    phases = [task.phase is Phase.BACKWARD for task in head]
    assert sum(after and not before for before, after in pairwise(phases)) == 3


def test_layers_that_write_nothing_of_all_take_turns_in_their_direction() -> None:
    _, graph = both(3)
    forward = [run for run in runs_of_layers(graph, graph.tasks) if all(t.phase is Phase.FORWARD for t in run)]
    orders = [list(dict.fromkeys(task.name.partition(": ")[0][-1] for task in run)) for run in forward]
    assert orders == [["0", "1", "2"], ["2", "1", "0"], ["0", "1", "2"], ["2", "1", "0"]]


def test_one_micro_batch_stays_as_it_is() -> None:
    graph = micro_batch()
    assert together(graph, 1) is graph
    assert layer_by_layer(graph) == graph and graph.micro_batch_size == graph.batch_size


@settings(max_examples=8, deadline=None)
@given(count=COUNTS, shared=st.booleans())
def test_sums_are_the_steps_own_where_its_update_frees_them(count: int, shared: bool) -> None:
    _, graph = both(count, shared=shared)
    own = with_own_sums(graph, captured_update("sgd"))
    gradients = {value.block for _, value in own.gradients if value}
    assert {own.blocks[block].role for block in gradients} == {Role.WEIGHT_GRADIENT}
    created = Counter(block for task in own.tasks for block in task.creates)
    assert all(created[block] == 1 for block in gradients)
    assert len(own.tasks) == len(graph.tasks) - len(gradients)


def test_random_numbers_are_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    work = Workload("random", module, nn.functional.cross_entropy, (torch.randn(4, 4),), (torch.randint(3, (4,)),))
    with pytest.raises(UnsupportedStrategy, match="'1' draws random numbers"):
        check_draws_nothing(capture(work.of_size(2)).graph)
    check_draws_nothing(micro_batch())
