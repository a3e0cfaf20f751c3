"""Encoded forms of activations, planned by density before the data is there."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from membench.core.graph.codec import ActivationCodec
from membench.core.graph.task_graph import Block, Role, TaskGraph


def float32_activations(graph: TaskGraph) -> frozenset[int]:
    """Return the blocks of activations that hold single-precision numbers, without indices and masks."""
    others = {
        value.block
        for task in graph.tasks
        if task.call
        for value in task.call.outputs
        if value is not None and value.dtype is not torch.float32
    }
    activations = {block.index for block in graph.blocks if block.role is Role.ACTIVATION}
    return frozenset(activations - others)


def encoded_bytes(block: Block, codec: ActivationCodec, density: float) -> int:
    """Return the size of an activation's encoded form if at most that fraction of the elements is not zero."""
    elements = block.size_bytes // torch.float32.itemsize
    return codec.size_bytes(elements, math.ceil(density * elements))


def add_encoded_forms(
    graph: TaskGraph, codecs: Mapping[int, ActivationCodec], densities: Mapping[int, float]
) -> tuple[TaskGraph, dict[int, int]]:
    """Return the graph with a block for the encoded form of each of these activations, and those blocks by activation.

    Args:
        codecs: by the activation's block, which holds float32.
        densities: by the activation's block; the largest fraction of non-zeros that is planned for.
    """
    blocks = list(graph.blocks)
    forms: dict[int, int] = {}
    for index, codec in codecs.items():
        block = graph.blocks[index]
        forms[index] = len(blocks)
        size_bytes = encoded_bytes(block, codec, densities[index])
        blocks.append(Block(len(blocks), f"{block.name}:encoded", size_bytes, Role.ENCODED, block.layer))
    return replace(graph, blocks=tuple(blocks)), forms
