"""Views by permutations, reshapes and slices: the elements that strides describe."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.core.graph.call import Value
from membench.core.graph.strides import view_of

aten = torch.ops.aten
FUNCTIONS = aten.permute.default, aten.view.default, aten.slice.Tensor, aten.expand.default


def value(tensor: torch.Tensor) -> Value:
    return Value(0, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(3)), st.permutations(range(4)), st.booleans())
def test_a_view_has_the_elements_that_its_strides_describe(first: list[int], second: list[int], repeats: bool) -> None:
    whole = torch.arange(24).view(2, 3, 4).permute(first)
    in_memory = whole.permute([first.index(axis) for axis in range(3)])
    part = in_memory.view(2, 3, 2, 2).permute(second).unsqueeze(1)
    if repeats:
        part = part.expand(-1, 5, -1, -1, -1)
    view = view_of(value(whole), value(part))
    assert view is not None and view.of(whole, *FUNCTIONS).equal(part)


@settings(deadline=None, max_examples=100)
@given(
    st.permutations(range(3)),
    st.permutations(range(4)),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(1, 2)), min_size=4, max_size=4),
    st.none() | st.integers(0, 3),
)
def test_a_part_has_the_elements_that_its_strides_describe(
    first: list[int], second: list[int], cuts: list[tuple[int, int, int]], selected: int | None
) -> None:
    whole = torch.arange(240).view(6, 5, 8).permute(first)
    part = whole.permute([first.index(axis) for axis in range(3)]).view(6, 5, 4, 2)
    for axis, (start, length, step) in enumerate(cuts):
        start = min(start, part.shape[axis] - 1)
        part = part.narrow(axis, start, min(length, part.shape[axis] - start))
        part = part[(slice(None),) * axis + (slice(None, None, step),)]
    part = part.permute(second)
    part = part if selected is None else part.select(selected, -1)
    view = view_of(value(whole), value(part))
    assert view is None or view.of(whole, *FUNCTIONS).equal(part)
    if all(step == 1 for _, _, step in cuts):
        assert view is not None


@pytest.mark.parametrize(
    "part",
    [
        torch.arange(24).view(4, 6)[1:],
        torch.arange(24).view(4, 6)[:, ::2],
        torch.arange(24).view(4, 6)[:, 1::2],
        torch.arange(24).view(4, 6)[2, 3:5],
        torch.arange(24).view(4, 3, 2)[..., 1],
        torch.arange(24)[7],
    ],
)
def test_slices_and_elements_are_views(part: torch.Tensor) -> None:
    whole = torch.arange(24).view(4, 6)
    view = view_of(value(whole), value(part))
    assert view is not None and view.of(whole, *FUNCTIONS).equal(part)


@pytest.mark.parametrize(
    "part",
    [
        torch.arange(24.0).view(4, 6),
        torch.arange(24).unfold(0, 4, 2),
        torch.arange(24).view(4, 6).diagonal(),
        torch.arange(26)[2:].view(4, 6),
    ],
)
def test_another_dtype_windows_that_overlap_a_diagonal_and_what_lies_beyond_are_not_such_views(
    part: torch.Tensor,
) -> None:
    assert view_of(value(torch.arange(24).view(4, 6)), value(part)) is None


def test_a_scalar_repeated_is_a_view_of_it() -> None:
    whole = torch.tensor(3.0)
    view = view_of(value(whole), value(whole.expand(2, 3)))
    assert view is not None and view.of(whole, *FUNCTIONS).equal(torch.full((2, 3), 3.0))


def test_only_elements_that_fill_their_block_have_views() -> None:
    apart = torch.arange(24).view(2, 12)[:, :5]
    assert view_of(value(apart), value(apart[0])) is None
    one = torch.arange(6).as_strided((1, 6), (17, 1))  # a dimension of one element may have any stride
    view = view_of(value(one), value(one[:, 2:]))
    assert view is not None and view.of(one, *FUNCTIONS).equal(one[:, 2:])
