"""Memory that the caller's tensors share is counted once, and written for all of them."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from membench.capture.values.callers_memory import CallersMemory, whole_of
from membench.core.graph.task_graph import Block, Role
from membench.core.libraries.shared_memory import distinct_bytes

PARTS = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 16)), min_size=1, max_size=6)
"""The first element and the length of each of several parts of one tensor."""


def _parts(of: Sequence[tuple[int, int]]) -> list[Tensor]:
    whole = torch.zeros(32)
    return [whole[first : first + length] for first, length in of]


def _blocks(memory: CallersMemory, tensors: Sequence[Tensor], role: Role) -> list[Block]:
    blocks = [Block(i, f"block{i}", tensor.nbytes, role, -1) for i, tensor in enumerate(tensors)]
    return [memory.counted(block, tensor, tensor) for block, tensor in zip(blocks, tensors, strict=True)]


@given(PARTS)
def test_inputs_are_counted_as_the_memory_that_they_have_together(parts: Sequence[tuple[int, int]]) -> None:
    tensors = _parts(parts)
    assert sum(block.size_bytes for block in _blocks(CallersMemory(), tensors, Role.INPUT)) == distinct_bytes(tensors)


@given(PARTS)
def test_a_task_that_writes_one_writes_those_that_overlap_with_it(parts: Sequence[tuple[int, int]]) -> None:
    memory, tensors = CallersMemory(), _parts(parts)
    blocks = _blocks(memory, tensors, Role.INPUT)
    for written, (first, length) in zip(blocks, parts, strict=True):
        overlapping = {i for i, (other, size) in enumerate(parts) if other < first + length and first < other + size}
        assert set(memory.with_overlapping([written.index])) == overlapping


@given(PARTS)
def test_weights_keep_all_their_bytes(parts: Sequence[tuple[int, int]]) -> None:
    tensors = _parts(parts)
    blocks = _blocks(CallersMemory(), tensors, Role.WEIGHT)
    assert [block.size_bytes for block in blocks] == [tensor.nbytes for tensor in tensors]


def test_a_converted_copy_shares_nothing() -> None:
    memory, real = CallersMemory(), torch.zeros(8)
    blocks = [Block(i, "input", 16, Role.INPUT, -1) for i in range(2)]
    assert [memory.counted(block, real.half(), real) for block in blocks] == blocks
    assert memory.with_overlapping([0]) == [0]


@pytest.mark.parametrize("first", [0, 3])
def test_the_whole_of_a_part_begins_where_its_storage_does(first: int) -> None:
    tensor = torch.arange(8.0)
    whole = whole_of(tensor[first:])
    assert torch.equal(whole, tensor) and whole.data_ptr() == tensor.data_ptr()
