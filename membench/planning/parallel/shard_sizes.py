"""Sizes of a rank's shards of weights, and of the buffers of the collectives that gather and reduce them."""

from collections.abc import Collection, Sequence
from math import ceil, prod

import torch

from membench.core.graph.task_graph import Block, Role, TaskGraph
from membench.core.step.sharding import Sharding
from membench.planning.parallel.weight_groups import WeightGroup, weight_dtypes

_WITHOUT_READERS = (torch.bfloat16, torch.float32, torch.float64, torch.complex128)
"""One dtype of each size of an element."""


class ShardSizes:
    """The sizes of the weights of a graph in shards.

    Attributes:
        weights: the blocks that are divided.
        dtypes: dtypes of whole weights, by block.
        elements: elements of the largest shard of a weight, by block, to which the others are padded.
    """

    def __init__(self, graph: TaskGraph, sharding: Sharding) -> None:
        self._graph, self._sharding = graph, sharding
        self.dtypes = weight_dtypes(graph)
        gradients = {name: value.shape for name, value in graph.gradients if value is not None}
        self._shapes = gradients | dict(sharding.shapes)
        self._kept_dtypes = dict(sharding.kept_dtypes)
        members = sharding.members
        self.weights = [
            block for block in graph.blocks if block.role is Role.WEIGHT and (members is None or block.name in members)
        ]
        read = list(dict.fromkeys(self.dtypes.values()))
        self.dtypes |= {b.index: self._unread(b, read) for b in self.weights if b.index not in self.dtypes}
        self.elements = {block.index: self._elements(block) for block in self.weights}

    def _unread(self, block: Block, read: Collection[torch.dtype]) -> torch.dtype:
        """Return a dtype of the size of an unread weight's elements, preferably that of a weight that a task reads."""
        itemsize = block.size_bytes // max(1, prod(self._shapes.get(block.name, (block.size_bytes,))))
        known = (self._kept_dtypes.get(block.name, torch.uint8), *read, *_WITHOUT_READERS)
        return next((dtype for dtype in known if dtype.itemsize == itemsize), torch.uint8)

    def _elements(self, block: Block) -> int:
        elements = block.size_bytes // self.dtypes[block.index].itemsize
        shape = self._shapes.get(block.name, (elements,))
        if not self._sharding.copies_out or prod(shape) != elements:
            return ceil(elements / self._sharding.ranks)
        return prod(self.shape(shape))

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the largest shard of a weight; a number is one for each rank."""
        return tuple(
            ceil(size / self._sharding.ranks) if place == self._sharding.dimension else size
            for place, size in enumerate(whole or (1,))
        )

    def kept_dtype(self, name: str, computed: torch.dtype) -> torch.dtype:
        """Return the dtype of the shards of a weight, or of its gradient, of which the whole one may have another."""
        return self._kept_dtypes.get(name, computed)

    def kept_bytes(self, weight: Block) -> int:
        """Return the bytes of a rank's shard of a weight."""
        return self.elements[weight.index] * self.kept_dtype(weight.name, self.dtypes[weight.index]).itemsize

    def gathered_bytes(self, weights: Sequence[Block]) -> int:
        """Return the bytes of weights that are gathered: of all ranks' shards, padded where they have buffers."""
        if not self._sharding.copies_out:
            return sum(block.size_bytes for block in weights)
        elements = ((self.elements[block.index], self.dtypes[block.index]) for block in weights)
        return sum(self._sharding.ranks * number * dtype.itemsize for number, dtype in elements)

    def reduced_elements(self, group: WeightGroup) -> int:
        """Return the elements of the buffer in which a group's gradients are reduced."""
        if not self._sharding.copies_out:
            return sum(
                self._graph.blocks[value.block].size_bytes // value.dtype.itemsize for value in group.gradients.values()
            )
        trained = (block for block in group.weights if block.name in group.gradients)
        return self._sharding.ranks * sum(self.elements[block.index] for block in trained)
