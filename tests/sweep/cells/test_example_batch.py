"""Example batches from their descriptions."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from membench.core.errors import MembenchError
from membench.core.libraries.torch_internals import tree_leaves
from membench.sweep.cells.example_batch import example

SHAPES = st.lists(st.integers(1, 4), max_size=3)
TENSORS = st.fixed_dictionaries(
    {"shape": SHAPES}, optional={"below": st.integers(1, 9), "dtype": st.sampled_from(["int64", "int32", "float16"])}
).filter(lambda each: "below" in each or each.get("dtype", "float16") == "float16")


@given(TENSORS, st.integers(1, 5))
def test_a_tensor_is_as_described(described: dict[str, Any], batch_size: int) -> None:
    tensor = example("inputs", described, batch_size, {})
    assert tensor.shape == (batch_size, *described["shape"])
    kind = torch.int64 if "below" in described else torch.float32
    assert tensor.dtype == (getattr(torch, described["dtype"]) if "dtype" in described else kind)
    if "below" in described:
        assert ((tensor >= 0) & (tensor < described["below"])).all()


@given(st.recursive(TENSORS | st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["ids", "mask"]), inner, max_size=2)))  # fmt: skip
def test_containers_are_those_of_the_description(described: Any) -> None:
    batch = example("inputs", described, 2, {})

    def check(described: Any, made: Any) -> None:
        if isinstance(described, dict) and "shape" in described:
            assert isinstance(made, torch.Tensor)
        elif isinstance(described, dict):
            assert described.keys() == made.keys()
            for name, each in described.items():
                check(each, made[name])
        elif isinstance(described, list):
            for each, item in zip(described, made, strict=True):
                check(each, item)
        else:
            assert made is described

    check(described, batch)


def test_a_value_fills_a_tensor_and_a_word_stands_for_a_size() -> None:
    described = {
        "mask": {"shape": ["length"], "value": 1, "dtype": "bool"},
        "ids": {"shape": ["length"], "below": "words"},
    }
    batch = example("inputs", described, 3, {"length": 5, "words": 2})
    assert torch.equal(batch["mask"], torch.ones(3, 5, dtype=torch.bool))
    assert batch["ids"].max() <= 1
    assert {leaf.shape for leaf in tree_leaves(batch)} == {(3, 5)}


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"ids": {"shape": [3], "belwo": 4}}, "inputs.ids.belwo: a tensor .* did you mean 'below'"),
        ([{"shape": 3}], r"inputs.0.shape is a list such as \[3, 224, 224\], not 3"),
        ({"shape": [0]}, "inputs.shape is a positive whole number, not 0"),
        ({"shape": ["length"]}, "inputs.shape is a positive whole number, not 'length'"),
        ({"shape": [], "below": 2.5}, "inputs.below is a positive whole number, not 2.5"),
        ({"shape": [], "dtype": "int46"}, "inputs.dtype is one of torch's, .* not 'int46'"),
        ({"shape": [], "dtype": "int64"}, "inputs: numbers of torch.int64 need a bound, below: 100"),
    ],
)
def test_a_wrong_description_is_refused_with_its_place(described: Any, message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        example("inputs", described, 2, {})
