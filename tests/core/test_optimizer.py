"""Optimizers by formula: their states and temporaries are those that torch allocates."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from membench.core.call import Value
from membench.core.errors import MembenchError
from membench.core.optimizer import Implementation, Quantized, UpdateRule
from membench.core.task_graph import TaskGraph
from membench.profiling.update import measure_update
from tests.helpers.updates import MAKERS, RULES

SCALARS_BYTES = 64
"""For each weight: the number of steps, which torch keeps in host memory, and scalars that operators wrap."""

Weights = dict[str, nn.Parameter]


def weights_of(sizes: Iterable[int], *dtypes: torch.dtype) -> Weights:
    kinds = dtypes or (torch.float32,)
    return {
        f"w{i}": nn.Parameter(torch.zeros(size, dtype=kinds[i % len(kinds)])) for i, size in enumerate(sizes)
    }


def graph_of(weights: Weights) -> TaskGraph:
    """Return a graph of gradients alone."""
    gradients = {
        name: Value(i, w.dtype, tuple(w.shape), tuple(w.stride()), 0)
        for i, (name, w) in enumerate(weights.items())
    }
    return TaskGraph("toy", 1, (), (), (), gradients=tuple(gradients.items()))


def check_like_torch(rule: UpdateRule, make: Callable[..., torch.optim.Optimizer], weights: Weights) -> None:
    planned = rule(graph_of(weights))
    measured = measure_update(make(list(weights.values())), weights, torch.device("cpu"))
    slack_bytes = SCALARS_BYTES * len(weights)
    for name in weights:
        ours, theirs = sum(planned.states[name].values()), sum(measured.states[name].values())
        assert ours <= theirs <= ours + SCALARS_BYTES
    peak_bytes = max(task.workspace_bytes for task in planned.tasks)
    assert peak_bytes <= measured.workspace_bytes <= peak_bytes + slack_bytes


SIZES = st.lists(st.integers(1_000, 50_000), min_size=1, max_size=5)


@settings(max_examples=15, deadline=None)
@given(
    sizes=SIZES,
    name=st.sampled_from(sorted(MAKERS)),
    runs=st.sampled_from([Implementation.FOREACH, Implementation.FOR_LOOP]),
)
def test_states_and_temporaries_are_torchs(sizes: list[int], name: str, runs: Implementation) -> None:
    rule = replace(RULES[name], implementation=runs)
    check_like_torch(rule, partial(MAKERS[name], foreach=runs is Implementation.FOREACH), weights_of(sizes))


@settings(max_examples=10, deadline=None)
@given(
    sizes=SIZES,
    name=st.sampled_from(["sgd", "momentum", "adam"]),
    runs=st.sampled_from([Implementation.FOREACH, Implementation.FOR_LOOP]),
)
def test_a_decay_that_is_added_to_the_gradient_takes_memory(
    sizes: list[int], name: str, runs: Implementation
) -> None:
    rule = replace(RULES[name], implementation=runs, l2_penalty=True)
    make = partial(MAKERS[name], foreach=runs is Implementation.FOREACH, weight_decay=0.1)
    check_like_torch(rule, make, weights_of(sizes))


@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(st.integers(5_000, 50_000), min_size=2, max_size=6))
def test_foreach_holds_the_list_of_the_last_dtype_until_the_next_is_made(sizes: list[int]) -> None:
    weights = weights_of(sizes, torch.bfloat16, torch.float32)
    check_like_torch(RULES["adamw"], partial(torch.optim.AdamW, foreach=True), weights)


@pytest.mark.parametrize("name", MAKERS)
def test_a_fused_update_is_one_task_without_temporaries(name: str) -> None:
    weights = weights_of([1000, 2000])
    [task] = replace(RULES[name], implementation="fused")(graph_of(weights)).tasks
    states = len(RULES[name].states)
    assert task.workspace_bytes == 0
    assert task.moved_bytes == (3 + 2 * states) * 4 * 3000
    [foreach] = RULES[name](graph_of(weights)).tasks
    assert foreach.moved_bytes >= task.moved_bytes


@given(st.integers(1, 10**7))
def test_a_state_in_8_bits_has_a_scale_for_each_block(elements: int) -> None:
    size_bytes = Quantized(256, 4096).size_bytes(elements)
    blocks = (elements + 255) // 256
    assert size_bytes == (4 * elements if elements < 4096 else elements + 4 * blocks)


def test_states_in_8_bits_are_those_of_the_configuration() -> None:
    update = RULES["adamw8bit"](graph_of(weights_of([4096, 100])))
    assert update.states == {
        "w0": {"state1": 4096 + 64, "state2": 4096 + 64},
        "w1": {"state1": 400, "state2": 400},
    }
    assert [task.weights for task in update.tasks] == [("w0",), ("w1",)]
    assert not any(task.workspace_bytes for task in update.tasks)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("gradients", "gone"),
        ("implementation", "fast"),
        ("passes", 1.5),
        ("temporaries", {"slow": 1}),
        ("temporaries", {"foreach": "many"}),
        ("l2_penalty", 1),
        ("name", ""),
    ],
)
def test_other_values_are_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(MembenchError, match=f"^{option}"):
        replace(RULES["adam"], **{option: value})
