"""Views by permutations and reshapes: the elements that strides describe."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.core.call import Value
from membench.core.strides import view_of

aten = torch.ops.aten
FUNCTIONS = aten.permute.default, aten.view.default, aten.expand.default


def value(tensor: torch.Tensor) -> Value:
    return Value(0, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(3)), st.permutations(range(4)), st.booleans())
def test_a_view_has_the_elements_that_its_strides_describe(
    first: list[int], second: list[int], repeats: bool
) -> None:
    whole = torch.arange(24).view(2, 3, 4).permute(first)
    in_memory = whole.permute([first.index(axis) for axis in range(3)])
    part = in_memory.view(2, 3, 2, 2).permute(second).unsqueeze(1)
    if repeats:
        part = part.expand(-1, 5, -1, -1, -1)
    view = view_of(value(whole), value(part))
    assert view is not None and view.of(whole, *FUNCTIONS).equal(part)


@pytest.mark.parametrize(
    "part", [torch.arange(24).view(4, 6)[1:], torch.arange(24).view(4, 6)[:, ::2], torch.arange(24.0)]
)
def test_a_part_or_another_dtype_is_not_such_a_view(part: torch.Tensor) -> None:
    assert view_of(value(torch.arange(24).view(4, 6)), value(part)) is None


def test_a_scalar_repeated_is_a_view_of_it() -> None:
    whole = torch.tensor(3.0)
    view = view_of(value(whole), value(whole.expand(2, 3)))
    assert view is not None and view.of(whole, *FUNCTIONS).equal(torch.full((2, 3), 3.0))
