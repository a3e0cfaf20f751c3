"""Context parallelism of a predicted step: each rank has a part of every sequence (`context_parallel`).

Attention is a ring there (Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023):
the ranks' keys and values are gathered in the forward pass, one attention runs for each rank's part of them, and their
gradients go from rank to rank in the backward pass. Each rank has one part from the first half of a sequence and one
from the second, as causal attention has less to do in the first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from membench.core.errors import MembenchError
from membench.core.libraries.torch_internals import tree_leaves, tree_map_only
from membench.core.step.workload import Workload

AXIS = "cp"
"""Axis over whose ranks sequences are divided; they share samples, and weights are in shards over it."""


@contextmanager
def sequences_divided(workload: Workload, mesh: Any) -> Iterator[Workload]:
    """Let a block capture a workload with a rank's part of each sequence.

    Args:
        workload: its first input is (samples, length, ...). Inputs and targets of that length in their second
            dimension, and buffers of the module in their first, are divided; its buffers are without data, and are
            changed.
        mesh: torch's, of the axis alone.

    Raises:
        MembenchError: the length is not a multiple of twice the number of ranks.
    """
    from torch.distributed.tensor.experimental import context_parallel  # takes a second

    length = _length(workload)
    if length % (2 * mesh.size()):
        raise MembenchError(
            f"sequences of {length} are not divided into {2 * mesh.size()} equal parts, two for each rank of {AXIS}; "
            f"choose a length that is a multiple of {2 * mesh.size()}"
        )

    def part(tensor: Tensor) -> Tensor:
        is_sequence = tensor.dim() > 1 and tensor.shape[1] == length
        return tensor[:, : length // mesh.size()].contiguous() if is_sequence else tensor

    divided = replace(
        workload,
        inputs=tree_map_only(Tensor, part, workload.inputs),
        targets=tree_map_only(Tensor, part, workload.targets),
        meshes=(*workload.meshes, mesh),
    )
    # torch wants at least one
    buffers = [torch.empty(length, device="meta")]
    buffers += [each for each in workload.module.buffers() if each.dim() and each.shape[0] == length]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[0] * len(buffers), no_restore_buffers=set(buffers)):
        yield divided


def _length(workload: Workload) -> int:
    first = next(each for each in tree_leaves(workload.inputs) if isinstance(each, Tensor))
    if first.dim() < 2:
        raise MembenchError(
            f"the first input is {tuple(first.shape)}, and sequences are divided along the second dimension; leave "
            f"{AXIS} out of parallel"
        )
    return first.shape[1]
