"""Layrub's constant resource region (Section 3.3), divided as in the sources that its authors published.

CGCL-codes/Layrub, ``src/caffe/net.cpp`` (``interlayer``, ``intralayer``), facts of it, none of its code:

- The outputs of layers take pieces in a walk over the forward pass, each the first piece that is vacant, which grows to
  the largest output that ever lies in it. A piece is vacant again once its output's last reader has run, and two layers
  after the layer that made it at the earliest; layers in place do not count. The walk does not visit losses: what one
  reads keeps its piece.
- Outputs with several readers (inputs of residual units) move to two pieces of their own, in turn; the pieces that the
  walk gave to them remain. The first such output stays where it is. The sources take it for the labels, which have
  several readers only where there are several losses (GoogLeNet).
- Each kind of internal block of batch norm, scale and ReLU has one piece, which all such layers use in turn. What other
  layers keep (the indices of max pooling, dropout's random numbers) stays on the device.
- With the intra-layer strategy, a gradient lies in the piece of its activation. All other gradients, among them those
  that the readers of one output leave to be summed up, are allocated when they are made and freed after their last use.
- The data layer hands out the memory of the batch that it prefetched. Where the first piece, which the batch takes, is
  as large, that memory serves as the piece (AlexNet, CaffeNet). The sources then copy the batch to the host and back, a
  tenth of what AlexNet copies; here it is not copied.

For ResNet-50 at 32 images the walk gives 343 MiB, the two pieces for inputs of units 196, ReLU's mask 24.5, and the
gradients to be summed up 196: together the 759.5 MB of Section 5.2.1.

A block that would meet another in its piece, which the published sources do not check, gets memory elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import ARGUMENT_ROLES, Kind, Role, TaskGraph
from membench.planning.region import Region, join_regions, keep_apart, plan_region
from membench.strategies.layrub.activations import Activations

MIGRATING_KINDS = frozenset({Kind.BATCH_NORM, Kind.SCALE, Kind.RELU})
"""Layers whose internal blocks are offloaded."""

LAYERS_HELD = 2
"""Number of layers after its own for which an output keeps its piece at least."""

SHARED_INPUTS = 2
"""Number of pieces for outputs with several readers."""


def plan_constant_region(schedule: Schedule, activations: Activations, *, intra_layer: bool) -> Region:
    """Return the region in which the blocks of an on-demand schedule can live.

    Args:
        activations: those of its graph.
        intra_layer: gradients lie in the pieces of their activations.
    """
    region = walk(activations)
    if intra_layer:
        gradients = {g: region.pieces[a] for g, a in activations.of_gradients.items() if a in region.pieces}
        region = Region(region.piece_bytes, region.pieces | gradients)
    region = keep_apart(schedule, region)
    kinds: dict[tuple[object, ...], set[int]] = {("elsewhere",): set(activations.all - region.pieces.keys())}
    for block, kind in _internal_blocks(activations):
        kinds.setdefault(kind, set()).add(block)
    return join_regions(region, plan_region(schedule, *kinds.values()))


def without_shared_batch(graph: TaskGraph, region: Region) -> TaskGraph:
    """Return a graph whose overhead counts one batch less, where the batch's memory serves as the region's first piece.

    A framework that prefetches no batches has none in its overhead.
    """
    batch_bytes = sum(block.size_bytes for block in graph.blocks if block.role is Role.INPUT)
    if not region.piece_bytes or region.piece_bytes[0] != batch_bytes or graph.overhead_bytes < batch_bytes:
        return graph
    return replace(graph, overhead_bytes=graph.overhead_bytes - batch_bytes)


def kept_on_device(graph: TaskGraph) -> set[int]:
    """Return the internal blocks of layers that are never offloaded."""
    return {
        block
        for task in graph.tasks
        if task.kind not in MIGRATING_KINDS
        for block in task.creates
        if graph.blocks[block].role is Role.INTERNAL
    }


@dataclass
class _Piece:
    size_bytes: int = 0
    held_until: float = 0  # position in the walk

    def take(self, size_bytes: int, until: float) -> None:
        self.size_bytes = max(self.size_bytes, size_bytes)
        self.held_until = until


def walk(activations: Activations) -> Region:
    """Return the pieces of all activations as the published sources choose them."""
    graph = activations.graph
    walked = [made for made in activations.made if made]
    last_reader: dict[int, float] = {}
    position = -1
    for x, made in zip(graph.forward_layers, activations.made, strict=True):
        position += bool(made)
        read_at = position if made or not x.creates else inf  # in the walk, in place, or a loss
        last_reader |= dict.fromkeys(x.reads - x.writes, read_at)
    pieces: list[_Piece] = []
    chosen: dict[int, int] = {}
    arguments = tuple(block.index for block in graph.blocks if block.role in ARGUMENT_ROLES)
    batch = tuple(block for block in arguments if graph.blocks[block].role is Role.INPUT)
    for position, blocks in enumerate([batch, *walked], start=-1):
        for block in blocks:
            chosen[block] = next((n for n, p in enumerate(pieces) if p.held_until < position), len(pieces))
            if chosen[block] == len(pieces):
                pieces.append(_Piece())
            held_until = max(last_reader.get(block, position), position + LAYERS_HELD)
            pieces[chosen[block]].take(graph.blocks[block].size_bytes, held_until)
    outputs = dict.fromkeys((*arguments, *chosen))
    shared = [block for block in outputs if activations.readers[block] > 1][1:]
    pieces_of_shared = [_Piece() for _ in range(min(SHARED_INPUTS, len(shared)))]
    for number, block in enumerate(shared):
        piece = number % SHARED_INPUTS
        pieces_of_shared[piece].take(graph.blocks[block].size_bytes, 0)
        chosen[block] = len(pieces) + piece
    pieces += pieces_of_shared
    return Region(
        tuple(piece.size_bytes for piece in pieces),
        {block: piece for block, piece in chosen.items() if block not in arguments},
    )


def _internal_blocks(activations: Activations) -> Iterator[tuple[int, tuple[object, ...]]]:
    """Yield each internal block that migrates, and its kind; those of one kind share a piece."""
    graph = activations.graph
    for task in graph.tasks:
        if task.kind in MIGRATING_KINDS:
            for position, block in enumerate(task.creates):
                if block not in activations.all and graph.blocks[block].role is not Role.GRADIENT:
                    yield block, (task.kind, task.phase, position)
