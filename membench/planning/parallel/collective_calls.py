"""Calls that sharding and replication add: torch's collectives, and the copies of their buffers.

    sent     <- _foreach_copy_      shards of one rank, each padded to those of the first
    output   <- all_gather          sent by all ranks, one after another
    gathered <- split_with_sizes    output, as (ranks, elements of a rank), cut into weights
    sent     <- _chunk_cat          gradients, cut into the ranks' parts, padded, and put rank by rank
    reduced  <- reduce_scatter      this rank's part of the sum of all, or of their mean

and of messages between the stages of a pipeline: ``c10d.send`` and ``c10d.recv_``, with a neighbour's distance in the
place of its rank.

These are the operators of torch's `fully_shard` (``torch.distributed.fsdp``), on buffers of the same layout, so that
sums over ranks have the same bits. A buffer that an operator fills as its argument ``out`` is the task's to create.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from zlib import crc32

import torch

from membench.core.graph.call import Call, Value
from membench.core.graph.collective import GroupOf

MEAN, SUM = "avg", "sum"
"""Reductions, as ``torch.ops._c10d_functional`` names them."""


def flat(block: int, dtype: torch.dtype, elements: int, offset: int = 0) -> Value:
    """Return a vector in a block."""
    return Value(block, dtype, (elements,), (1,), offset)


def contiguous(block: int, dtype: torch.dtype, shape: Sequence[int], offset: int = 0) -> Value:
    """Return a contiguous tensor in a block."""
    strides = tuple(prod(shape[dimension + 1 :]) for dimension in range(len(shape)))
    return Value(block, dtype, tuple(shape), strides, offset)


def copies_in(shards: Sequence[Value], sent: int, dtype: torch.dtype) -> Call:
    """Return the call that copies vectors one behind another into a buffer, converted to its dtype."""
    sizes = [shard.shape[0] for shard in shards]
    starts = accumulate(sizes, initial=0)
    parts = tuple(flat(sent, dtype, size, start) for size, start in zip(sizes, starts, strict=False))
    return copies(shards, parts)


def gathers(sent: Value, ranks: int, axis: str, output: int) -> Call:
    """Return the call that gathers the vectors of all ranks of an axis in a buffer."""
    gathered = flat(output, sent.dtype, ranks * sent.shape[0])
    arguments = (sent, ranks, GroupOf(axis))
    return Call("_c10d_functional.all_gather_into_tensor_out.default", arguments, (("out", gathered),), (None,))


def copies_out(output: Value, ranks: int, weights: Sequence[tuple[int, int]]) -> Call:
    """Return the call that cuts what was gathered into weights.

    Args:
        weights: the block of each, and the elements of a rank's shard of it.
    """
    sizes = tuple(elements for _, elements in weights)
    targets = tuple(contiguous(block, output.dtype, (ranks, elements)) for block, elements in weights)
    source = contiguous(output.block, output.dtype, (ranks, sum(sizes)))
    return Call("aten.split_with_sizes_copy.out", (source, sizes, 1), (("out", targets),), (None,))


def cuts_for_ranks(gradients: Sequence[Value], ranks: int, sent: Value) -> Call:
    """Return the call that puts each rank's parts of gradients (along the first dimension) one by one into a buffer."""
    target = contiguous(sent.block, sent.dtype, (ranks, sent.shape[0] // ranks))
    return Call("aten._chunk_cat.out", (tuple(gradients), 0, ranks), (("out", target),), (None,))


def reduce_scatters(sent: Value, operator: str, ranks: int, axis: str, reduced: Value) -> Call:
    """Return the call that reduces a buffer over the ranks of an axis, of which each keeps its part."""
    arguments = (sent, operator, ranks, GroupOf(axis))
    return Call("_c10d_functional.reduce_scatter_tensor_out.default", arguments, (("out", reduced),), (None,))


def all_reduces(value: Value, operator: str, axis: str) -> Call:
    """Return the call that reduces a buffer in place over the ranks of an axis."""
    return Call("_c10d_functional.all_reduce_.default", (value, operator, GroupOf(axis)), (), (None,))


def sends(value: Value, axis: str, peer: int, message: str) -> Call:
    """Return the call that sends a tensor to a neighbour on an axis."""
    return Call("c10d.send.default", ((value,), GroupOf(axis), peer, _tag(message)), (), (None,))


def receives(value: Value, axis: str, peer: int, message: str) -> Call:
    """Return the call that fills a block with what a neighbour on an axis has sent."""
    return Call("c10d.recv_.default", ((value,), GroupOf(axis), peer, _tag(message)), (), (None,))


def _tag(message: str) -> int:
    """Return the number by which a receive finds its send."""
    return crc32(message.encode()) >> 1  # of 31 bits


def copies(sources: Sequence[Value], targets: Sequence[Value]) -> Call:
    """Return the call that copies tensors."""
    return Call("aten._foreach_copy_.default", (tuple(targets), tuple(sources)), (), (None,))


def multiplies(value: Value, by: float) -> Call:
    """Return the call that multiplies a buffer in place."""
    return Call("aten.mul_.Scalar", (value, by), (), (None,))
