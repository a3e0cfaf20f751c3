"""Sizes of a rank's shards of weights, and of the buffers of the collectives that gather and reduce them."""

from collections.abc import Sequence
from math import ceil, prod

import torch

from membench.core.sharding import Sharding
from membench.core.task_graph import Block, Role, TaskGraph
from membench.planning.parallel.weight_groups import WeightGroup, weight_dtypes


class ShardSizes:
    """The sizes of the weights of a graph in shards.

    Attributes:
        weights: the blocks that are divided.
        dtypes: of whole weights, by block.
        elements: of a rank's shard of a weight, by block: of the largest one, to which the others are padded.
    """

    def __init__(self, graph: TaskGraph, sharding: Sharding) -> None:
        self._graph, self._sharding = graph, sharding
        self.dtypes = weight_dtypes(graph)
        gradients = {name: value.shape for name, value in graph.gradients if value is not None}
        self._shapes = gradients | dict(sharding.shapes)
        members = sharding.members
        self.weights = [
            block
            for block in graph.blocks
            if block.role is Role.WEIGHT and (members is None or block.name in members)
        ]
        self.elements = {block.index: self._elements(block) for block in self.weights}

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

    def kept_dtype(self, computed: torch.dtype) -> torch.dtype:
        """Return the dtype of the shards of weights, or gradients, of which whole ones have another."""
        return self._sharding.kept_dtype or computed

    def kept_bytes(self, weight: Block) -> int:
        """Return the bytes of a rank's shard of a weight."""
        return self.elements[weight.index] * self.kept_dtype(self.dtypes[weight.index]).itemsize

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
                self._graph.blocks[value.block].size_bytes // value.dtype.itemsize
                for value in group.gradients.values()
            )
        trained = (block for block in group.weights if block.name in group.gradients)
        return self._sharding.ranks * sum(self.elements[block.index] for block in trained)
