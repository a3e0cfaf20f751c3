"""Arguments: nested containers of tensors, by position or by name."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from membench.core.errors import ShapeMismatch
from membench.core.step.arguments import ExpectedArguments, as_arguments, call_with, map_leaves, named_leaves

LEAVES = st.integers()
KEYS = st.sampled_from(["ids", "mask", "labels"])
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def reversed_keys(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: reversed_keys(tree[key]) for key in reversed(tree)}
    return type(tree)(map(reversed_keys, tree)) if isinstance(tree, list | tuple) else tree


@given(NESTED)
def test_leaves_are_in_the_order_of_the_expected_arguments_for_any_order_of_keys(tree: Any) -> None:
    expected = as_arguments(tree)
    leaves = [leaf for _, leaf in named_leaves("inputs", expected)]
    found = ExpectedArguments("inputs", expected)
    assert found.leaves_of(reversed_keys(tree)) == found.leaves == leaves
    assert found.nested(leaves) == expected
    assert [name for name, _ in named_leaves("inputs", expected)] == list(map(found.place, range(len(leaves))))


@given(NESTED)
def test_each_leaf_is_named_by_the_expression_that_reads_it(tree: Any) -> None:
    arguments = as_arguments(tree)
    for name, leaf in named_leaves("arguments", arguments):
        assert eval(name, {"arguments": arguments}) == leaf


@given(NESTED)
def test_replaced_leaves_keep_their_places(tree: Any) -> None:
    arguments = as_arguments(tree)
    numbers = range(len(named_leaves("", arguments)))
    replaced = map_leaves(lambda leaf, number: (leaf, number), arguments, numbers)
    assert map_leaves(lambda leaf, _: leaf, arguments, numbers) == arguments
    assert type(replaced) is type(arguments)


@pytest.mark.parametrize(
    ("expected", "other", "message"),
    [
        ((1, 2), (1,), "captured with 2 inputs and got 1"),
        ({"ids": 1}, (1,), r"nested as \{'ids': _\} and got \(_,\)"),
        ({"ids": 1}, {"ids": 1, "mask": 2}, r"nested as \{'ids': _\} and got \{'ids': _, 'mask': _\}"),
        (({"ids": [1, 2]},), ({"ids": [1]},), r"nested as \(\{'ids': \[_, _\]\},\) and got"),
        (({"ids": 1},), (1,), r"nested as \(\{'ids': _\},\) and got \(_,\)"),
    ],
)
def test_another_nesting_is_refused(expected: Any, other: Any, message: str) -> None:
    with pytest.raises(ShapeMismatch, match=message):
        ExpectedArguments("inputs", expected).leaves_of(other)


def test_one_argument_is_given_alone_several_in_a_sequence_and_by_name_in_a_mapping() -> None:
    def received(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    images = torch.zeros(2)
    assert call_with(received, as_arguments(images)) == ((images,), {})
    assert call_with(received, as_arguments([1, [2]]), 0) == ((0, 1, [2]), {})
    assert call_with(received, as_arguments({"ids": 1}), 0) == ((0,), {"ids": 1})
