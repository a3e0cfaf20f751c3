"""Where the caller's tensors lie: memory that several of them share is counted once, and written for all of them."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from membench.core.graph.task_graph import Block, Role
from membench.core.libraries.shared_memory import DistinctMemory, Span, span_of, storage_span
from membench.core.libraries.torch_internals import FakeTensor, no_dispatch


class CallersMemory:
    """The memory of a step's external blocks."""

    def __init__(self) -> None:
        self._memory = DistinctMemory()
        self._spans: dict[int, Span] = {}
        self._overlapping: dict[int, tuple[int, ...]] = {}  # blocks that share memory with others

    def counted(self, block: Block, tensor: Tensor, real: Tensor) -> Block:
        """Return a block with the bytes that no earlier block has; of a weight, which may be moved by itself, with all.

        Args:
            tensor: in that block.
            real: what it stands for; if it has another layout, the step's tensor is a converted copy.
        """
        if (tensor.dtype, tensor.shape, tensor.stride()) != (real.dtype, real.shape, real.stride()):
            return block
        # further views of what a constant lies in have the same block
        span = storage_span(real) if block.role is Role.CONSTANT else span_of(real)
        own_bytes = self._memory.add(span)
        if own_bytes < block.size_bytes:
            shared = [other for other, taken in self._spans.items() if taken.overlaps(span)]
            self._overlapping[block.index] = tuple(shared)
            for other in shared:
                self._overlapping[other] = (*self._overlapping.get(other, ()), block.index)
        self._spans[block.index] = span
        return block if block.role is Role.WEIGHT else replace(block, size_bytes=own_bytes)

    def with_overlapping(self, written: Iterable[int]) -> list[int]:
        """Return the blocks that a task writes, and those that share memory with them."""
        return [each for block in written for each in (block, *self._overlapping.get(block, ()))]


def whole_of(tensor: Tensor) -> Tensor:
    """Return a tensor that begins where its storage does: itself, or all of the storage if it is a part of it."""
    if isinstance(tensor, FakeTensor) or not tensor.storage_offset():
        return tensor
    with no_dispatch():
        elements = tensor.untyped_storage().nbytes() // tensor.itemsize
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            tensor.untyped_storage(), 0, (elements,), (1,)
        )
