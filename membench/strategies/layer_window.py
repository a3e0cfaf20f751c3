"""Layers that pass through a window of the device: their weights visit it, and all else of them leaves it.

for each layer, in the forward and then in the backward pass:
    bring its weights, and those of the next one            (two buffers, of which one is filled)
    compute it, for all micro-batches, in the backward pass again from what the layer before handed on, which has
    left meanwhile
    give its weights back; the sums of its gradients leave
    on the processor: update its weights, beside the layers that follow
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from membench.core.graph.changed_tasks import changed, numbered
from membench.core.graph.task_graph import AFTER_THE_LOSS, Phase, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.deferred import defer_updates, deferred_updates
from membench.planning.rewrites.layer_by_layer import in_order_of_layers, runs_of_layers, runs_of_micro_batches
from membench.planning.rewrites.recompute import Repeatable, Segment, recompute
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.host_states import (
    Leaving,
    Visits,
    applied_gradients,
    checkpoints,
    last_touched_by,
    states_on_host,
    updates_behind,
)

BUCKET_BYTES = 1_000_000_000
"""What the device holds of gradients and checkpoints while they leave; assumed: a layer's of tens of billions."""


def in_host_memory(
    graph: TaskGraph, cost: CostModel, *, updates_beside: bool = True, deferred_share: float = 0.0
) -> TaskGraph:
    """Return a step whose states are in host memory, and which recomputes each layer from what is handed on to it.

    The last layer, whose backward pass follows at once, is not recomputed.

    Args:
        updates_beside: a layer is updated once its gradients are complete, and not behind the backward pass.
        deferred_share: share of the weights whose update runs beside the next step's forward pass; see `defer_updates`.

    Raises:
        UnsupportedStrategy: see `states_on_host` and `defer_updates`.
    """
    graph = join_convolution_backward(graph, cost)
    parts = [part for layer in runs_of_layers(graph, _passes(graph)) for part in runs_of_micro_batches(layer)]
    forward = [[task for task in part if task.phase not in AFTER_THE_LOSS] for part in parts]
    readers = Counter(block for tasks in forward for block in {b for task in tasks for b in task.reads})
    segments = [
        Segment(frozenset(block for task in tasks for block in task.creates if readers[block] <= 1))
        for tasks, part in zip(forward, parts, strict=True)
        if len(tasks) == len(part)
    ]
    passes = numbered(sorted(graph.tasks, key=lambda task: task.phase in AFTER_THE_LOSS))
    graph = states_on_host(recompute(Repeatable(replace(graph, tasks=passes), cost), segments))
    layers = runs_of_layers(graph, in_order_of_layers(graph, _passes(graph)))
    due = updates_behind(layers, [task for task in graph.tasks if task.phase is Phase.UPDATE])
    if not updates_beside:
        due = [[] for _ in layers[1:]] + [[task for tasks in due for task in tasks]]
    tasks = (task for layer, updates in zip(layers, due, strict=True) for task in (*layer, *updates))
    return defer_updates(replace(graph, tasks=numbered(tasks)), deferred_share)


def pass_through(builder: ScheduleBuilder, ahead: int, bucket_bytes: int, *, updates_beside: bool = True) -> None:
    """Schedule the step of `in_host_memory`.

    Args:
        ahead: layers whose weights are brought before they are needed.
        bucket_bytes: size of what the device holds while it leaves.
        updates_beside: as given to that; otherwise no update begins before everything else has finished.
    """
    graph = builder.graph
    deferred = {task.index for task in deferred_updates(graph)}
    passes = _passes(graph)
    layers = runs_of_layers(graph, passes)
    parts = [part for layer in layers for part in runs_of_micro_batches(layer)]
    at_home = {block.index for block in graph.blocks if block.host_location}
    finished = last_touched_by(passes, applied_gradients(graph))
    turn = next(layer for layer in layers if any(task.phase in AFTER_THE_LOSS for task in layer))
    leaving = Leaving(builder, bucket_bytes)
    window = Visits(builder, [_as_one(layer) for layer in layers], at_home, (), ahead, reuse_bytes=0)
    handed_on = _HandedOn(builder, parts)
    layer_of = {task.index: layer for layer in layers for task in layer}
    part_of = {task.index: (place, part) for place, part in enumerate(parts) for task in part}
    for task in graph.tasks:
        if task.index in deferred:
            continue  # issued before a weight of it visits
        if task.phase is Phase.UPDATE:
            if not updates_beside and graph.tasks[task.index - 1] is passes[-1]:
                leaving.finish()
                builder.synchronize()
            _update(builder, task, leaving)
            continue
        layer, (place, part) = layer_of[task.index], part_of[task.index]
        if task is part[0]:
            window.begin(layer[0])
            handed_on.begin(place)
        builder.prefetch_offloaded(task.reads)
        builder.compute(task)
        leaving.send(finished.get(task.index, ()))
        leaving.free_others()
        if task is part[-1]:
            handed_on.end(place, leaving)
        if task is layer[-1]:
            window.end(layer[0], leaving)
            if layer is turn:
                leaving.finish()
    leaving.finish()


def _passes(graph: TaskGraph) -> list[Task]:
    return [task for task in graph.tasks if task.phase is not Phase.UPDATE]


class _HandedOn:
    """What recomputation starts from: it leaves unless the next part needs it, and is back one before.

    Args:
        parts: the tasks of each layer on each micro-batch, in order.
    """

    def __init__(self, builder: ScheduleBuilder, parts: Sequence[Sequence[Task]]) -> None:
        self._builder = builder
        kept = checkpoints(builder.graph)
        self._used = [{block for task in part for block in (*task.reads, *task.writes)} & kept for part in parts]
        self._used.append(set())

    def begin(self, place: int) -> None:
        """Bring what a part and the next one use."""
        for used in self._used[place : place + 2]:
            self._builder.prefetch_offloaded(sorted(used))

    def end(self, place: int, leaving: Leaving) -> None:
        """Let leave what a part has used and the next one does not."""
        leaving.send(b for b in self._used[place] - self._used[place + 1] if not self._builder.is_dead(b))


def _update(builder: ScheduleBuilder, task: Task, leaving: Leaving) -> None:
    if task.on_host:
        leaving.free_now(task.writes)
    else:
        builder.prefetch_offloaded(task.reads)
    builder.compute(task)
    leaving.free_others()


def _as_one(tasks: Sequence[Task]) -> Task:
    """Return the first of several tasks, with what all of them read and write."""
    reads = dict.fromkeys(block for task in tasks for block in task.reads)
    writes = dict.fromkeys(block for task in tasks for block in task.writes)
    return changed(tasks[0], reads=tuple(reads), writes=tuple(writes))
