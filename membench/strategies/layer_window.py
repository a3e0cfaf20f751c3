"""Layers that pass through a window of the device: their weights visit it, and all else of them leaves it.

    for each layer, in the forward and then in the backward pass:
        bring its weights, and those of the next one            (two buffers, of which one is filled)
        compute it, for all micro-batches; what the program's recomputation starts from leaves, and comes back
        give its weights back; the sums of its gradients leave
        on the processor: update its weights, beside the layers that follow
"""

from collections.abc import Sequence

from membench.core.graph.changed_tasks import changed
from membench.core.graph.task_graph import Phase, Task
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.layer_by_layer import runs_of_layers, runs_of_micro_batches
from membench.strategies.host_states import (
    Leaving,
    Visits,
    applied_gradients,
    checkpoints,
    compute_as_written,
    last_touched_by,
)

BUCKET_BYTES = 1_000_000_000
"""What the device holds of gradients and checkpoints while they leave; assumed: a layer's of tens of billions."""


def pass_through(builder: ScheduleBuilder, ahead: int, bucket_bytes: int, *, updates_beside: bool = True) -> None:
    """Schedule a step whose states are in host memory.

    Args:
        ahead: layers whose weights are brought before they are needed.
        bucket_bytes: size of what the device holds while it leaves.
        updates_beside: a layer is updated once its gradients are complete, and not behind the backward pass.
    """
    graph = builder.graph
    passes = [task for task in graph.tasks if task.phase is not Phase.UPDATE]
    layers = runs_of_layers(graph, passes)
    due = _updates_behind(layers, [task for task in graph.tasks if task.phase is Phase.UPDATE])
    if not updates_beside:
        due = [[] for _ in layers[1:]] + [[task for tasks in due for task in tasks]]
    leaving = Leaving(builder, bucket_bytes)
    at_home = {block.index for block in graph.blocks if block.host_location}
    window = Visits(builder, [_as_one(tasks) for tasks in layers], at_home, (), ahead, reuse_bytes=0)
    parts = [part for tasks in layers for part in runs_of_micro_batches(tasks)]
    kept = _Kept(builder, parts)
    finished = last_touched_by(passes, applied_gradients(graph))
    updates = {tasks[-1].index: updates for tasks, updates in zip(layers, due, strict=True)}
    first = {task.index: tasks[0] for tasks in layers for task in tasks}
    for place, part in enumerate(parts):
        window.begin(first[part[0].index])
        kept.begin(place)
        for task in part:
            compute_as_written(builder, task)
            leaving.send(finished.get(task.index, ()))
        kept.end(place, leaving)
        if part[-1].index in updates:
            window.end(first[part[-1].index], leaving)
            for task in updates[part[-1].index]:
                _update(builder, task, leaving)
    leaving.finish()


class _Kept:
    """What the program's recomputation starts from: it leaves unless the next part needs it, and is back one before.

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


def _updates_behind(layers: Sequence[Sequence[Task]], updates: Sequence[Task]) -> list[list[Task]]:
    """Return for each layer the updates of which it is the last to use a block; updates of one block stay in order."""
    last = {b: place for place, tasks in enumerate(layers) for task in tasks for b in (*task.reads, *task.writes)}
    due: list[list[Task]] = [[] for _ in layers]
    for task in updates:
        touched = (*task.reads, *task.writes)
        place = max(last.get(block, 0) for block in touched)
        due[place].append(task)
        last |= dict.fromkeys(touched, place)
    return due


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
