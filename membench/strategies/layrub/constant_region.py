"""Layrub's constant resource region (Section 3.3), divided as in the sources that its authors published.

CGCL-codes/Layrub, ``src/caffe/net.cpp`` (``interlayer``, ``intralayer``): pieces are shared, but only among blocks of one
purpose, each as large as the largest block that ever lies in it.

- Maps that one layer reads take turns in a few pieces; with the intra-layer strategy their gradients lie there, too.
- Maps that several layers read (inputs of residual units) have pieces of their own.
- So have the gradients which these readers hand back, before they are summed up.
- What batch norm, scale and ReLU keep inside has one piece for each thing kept, which all such layers use in turn.

What other layers keep inside (the indices of max pooling, dropout's random numbers) is not part of the region: it stays.

For ResNet-50 at 32 images the sources' own walk over the layers gives the first 343 MiB, the second and third 196 each and
ReLU's mask 24.5: together the 759.5 MB of Section 5.2.1. Here lifetimes decide within a purpose: the first take 318.5.
"""

from collections import Counter
from collections.abc import Iterator

from membench.core.schedule import Schedule
from membench.core.task_graph import Kind, Phase, Role, Task, TaskGraph
from membench.planning.region import Region, plan_region

MIGRATING_KINDS = frozenset({Kind.BATCH_NORM, Kind.SCALE, Kind.RELU})
"""Layers that move to the host what they keep inside."""

Purpose = tuple[object, ...]


def plan_constant_region(schedule: Schedule, *, intra_layer: bool) -> Region:
    """Return the region in which the blocks of an on-demand schedule can live.

    Args:
        intra_layer: gradients share pieces with maps.
    """
    members: dict[Purpose, set[int]] = {}
    for block, purpose in _purposes(schedule.graph, intra_layer=intra_layer):
        members.setdefault(purpose, set()).add(block)
    piece_bytes: list[int] = []
    pieces: dict[int, int] = {}
    for blocks in members.values():
        part = plan_region(schedule, blocks)
        pieces |= {block: len(piece_bytes) + piece for block, piece in part.pieces.items()}
        piece_bytes += part.piece_bytes
    return Region(tuple(piece_bytes), pieces)


def kept_on_device(graph: TaskGraph) -> set[int]:
    """Return the blocks that layers keep inside and that never leave the device."""
    return {
        block
        for task in graph.tasks
        if task.kind not in MIGRATING_KINDS
        for block in task.creates
        if graph.blocks[block].role is Role.INTERNAL
    }


def _purposes(graph: TaskGraph, *, intra_layer: bool) -> Iterator[tuple[int, Purpose]]:
    """Yield each block that lies in the region, and what tells it from those that it shares no piece with."""
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
                yield block, ("maps of several readers",)
            else:
                yield block, ("maps",) if intra_layer else ("maps", role)


def _gradients_to_sum(graph: TaskGraph, task: Task) -> list[int]:
    """Return the gradients of one map that a task sums up."""
    if task.kind is not Kind.ADD or task.phase is not Phase.BACKWARD:
        return []
    gradients = [block for block in task.reads if graph.blocks[block].role is Role.GRADIENT]
    return gradients if len(gradients) > 1 else []
