"""Layrub's constant resource region (Section 3.3), divided as in the sources that its authors published.

CGCL-codes/Layrub, ``src/caffe/net.cpp`` (``interlayer``, ``intralayer``): pieces are shared, but only among blocks of one
purpose, each as large as the largest block that ever lies in it.

- Activations that one layer reads share a few pieces in turn; with the intra-layer strategy their gradients do as well.
- Activations that several layers read (inputs of residual units) have pieces of their own.
- The gradients from these readers, before they are summed up, have pieces of their own.
- Each kind of internal block of batch norm, scale and ReLU has one piece, which all such layers use in turn.

Internal blocks of other layers (the indices of max pooling, dropout's random numbers) are not part of the region: they
stay on the device.

For ResNet-50 at 32 images the sources' own walk over the layers gives the first 343 MiB, the second and third 196 each and
ReLU's mask 24.5: together the 759.5 MB of Section 5.2.1. Here lifetimes decide within a purpose: the first take 318.5.
"""

from collections import Counter
from collections.abc import Iterator

from membench.core.schedule import Schedule
from membench.core.task_graph import Kind, Phase, Role, Task, TaskGraph
from membench.planning.region import Region, plan_region

MIGRATING_KINDS = frozenset({Kind.BATCH_NORM, Kind.SCALE, Kind.RELU})
"""Layers whose internal blocks are offloaded."""

Purpose = tuple[object, ...]


def plan_constant_region(schedule: Schedule, *, intra_layer: bool) -> Region:
    """Return the region in which the blocks of an on-demand schedule can live.

    Args:
        intra_layer: gradients share pieces with activations.
    """
    members: dict[Purpose, set[int]] = {}
    for block, purpose in _purposes(schedule.graph, intra_layer=intra_layer):
        members.setdefault(purpose, set()).add(block)
    piece_bytes: list[int] = []
    pieces: dict[int, int] = {}
    for blocks in members.values():
        region = plan_region(schedule, blocks)
        pieces |= {block: len(piece_bytes) + piece for block, piece in region.pieces.items()}
        piece_bytes += region.piece_bytes
    return Region(tuple(piece_bytes), pieces)


def kept_on_device(graph: TaskGraph) -> set[int]:
    """Return the internal blocks of layers that are never offloaded."""
    return {
        block
        for task in graph.tasks
        if task.kind not in MIGRATING_KINDS
        for block in task.creates
        if graph.blocks[block].role is Role.INTERNAL
    }


def _purposes(graph: TaskGraph, *, intra_layer: bool) -> Iterator[tuple[int, Purpose]]:
    """Yield each block of the region with its purpose; only blocks of one purpose share a piece."""
    readers = Counter(
        block for layer in graph.forward_layers for block in layer.reads if block not in layer.writes
    )
    addends = {block for task in graph.tasks for block in _gradients_to_sum(graph, task)}
    stays = kept_on_device(graph)
    for task in graph.tasks:
        for position, block in enumerate(task.creates):
            role = graph.blocks[block].role
            if block in stays:
                continue
            if task.kind in MIGRATING_KINDS and role is not Role.GRADIENT:
                yield block, (task.kind, task.phase, position)
            elif block in addends:
                yield block, ("addends",)
            elif readers[block] > 1:
                yield block, ("activations of several readers",)
            else:
                yield block, ("activations",) if intra_layer else ("activations", role)


def _gradients_to_sum(graph: TaskGraph, task: Task) -> list[int]:
    """Return the gradients of one activation that a task sums up."""
    if task.kind is not Kind.ADD or task.phase is not Phase.BACKWARD:
        return []
    gradients = [block for block in task.reads if graph.blocks[block].role is Role.GRADIENT]
    return gradients if len(gradients) > 1 else []
