"""Bytes of memory that tensors share are counted once, whatever the tensors are."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from membench.core.libraries.shared_memory import DistinctMemory, Span, distinct_bytes, sharing

SPANS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 12)), max_size=12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SPANS)
def test_each_byte_is_counted_once_in_any_order(spans: list[tuple[int, int, int]]) -> None:
    memory, counted = DistinctMemory(), set()
    for device, start, size in spans:
        new = {(device, byte) for byte in range(start, start + size)} - counted
        assert memory.add(Span(device, start, start + size)) == len(new)
        counted |= new


def test_views_of_one_tensor_are_counted_once_with_and_without_data() -> None:
    for device in ("cpu", "meta"):
        whole = torch.zeros(4, 6, device=device)
        assert distinct_bytes([whole, whole, whole[:2], whole.t(), whole.view(torch.uint8)]) == 96
        assert distinct_bytes([whole[:, :-1], whole[:, 1:]]) == 96
        assert distinct_bytes([whole[:1], whole[3:]]) == 48
        assert distinct_bytes([whole, whole.clone(), whole.new_empty(0)]) == 192
        assert distinct_bytes([whole[:1].expand(5, 6)]) == 24


def test_arrays_of_one_memory_are_counted_once() -> None:
    array = torch.zeros(8).numpy()
    assert distinct_bytes([torch.from_numpy(array), torch.from_numpy(array)]) == 32


def test_sharing_tells_the_same_tensor_a_view_and_separate_ones_apart() -> None:
    one, other = torch.zeros(4), torch.zeros(4)
    assert sharing([one, other]) is None
    calls: list[list[Tensor]] = [[one, one], [one, one[:]], [one[:3], one[1:]], [one, other, one]]
    found = [sharing(call) for call in calls]
    assert None not in found and len(set(found)) == len(found)
    assert sharing([one, one]) == sharing([other, other])
