"""Uses of blocks: the tasks that touch them, and the layers that touch them first or last."""

from collections.abc import Iterable, Sequence

from membench.core.graph.task_graph import LayerTasks, TaskGraph


def touching_tasks(graph: TaskGraph, *, on_host: bool = False) -> list[list[int]]:
    """Return for each block the indices of the device's tasks that touch it, or of the host's, in order."""
    touching: list[list[int]] = [[] for _ in graph.blocks]
    for task in graph.tasks:
        if task.on_host is not on_host:
            continue
        for block in {*task.reads, *task.writes}:
            touching[block].append(task.index)
    return touching


def saved_for_backward(graph: TaskGraph) -> set[int]:
    """Return the blocks that the forward pass creates and the backward pass reads."""
    created = {block for layer in graph.forward_layers for block in layer.creates}
    return created & {block for layer in graph.backward_layers for block in layer.reads}


def last_touched(layers: Sequence[LayerTasks], blocks: Iterable[int]) -> list[list[int]]:
    """Return for each layer those of the blocks that it touches and no later layer does, sorted."""
    remaining, found = set(blocks), []
    for layer in reversed(layers):
        touched = layer.touches & remaining
        found.append(sorted(touched))
        remaining -= touched
    return found[::-1]


def first_touched(layers: Sequence[LayerTasks], blocks: Iterable[int]) -> list[list[int]]:
    """Return for each layer those of the blocks that it touches and no earlier layer does, sorted."""
    return last_touched(layers[::-1], blocks)[::-1]
