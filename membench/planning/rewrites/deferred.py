"""Deferred updates: those that run beside the next step's forward pass, before it reads their weights.

    in time     forward 1, forward 2 ... backward 2, backward 1, update 1, update 2
    deferred    update 1, forward 1, update 2, forward 2 ... backward 2, backward 1

Results stay the same bit for bit. The graph is a step's in the steady state: its deferred updates apply the gradients
of the step before, which wait in host memory (`Role.PENDING_GRADIENT`), and its backward pass makes those of the next
step there. A run's first step has nothing to apply, and behind its last one these updates are still to be done.

GreedySnake (arXiv 2512.17570) defers a share of each layer's update.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from membench.core.errors import UnsupportedStrategy
from membench.core.graph.changed_tasks import numbered
from membench.core.graph.task_graph import HostLocation, Phase, Role, Task, TaskGraph


def defer_updates(graph: TaskGraph, share: float) -> TaskGraph:
    """Return the graph with a share of the host's updates deferred.

    Args:
        graph: with updates on the host, see `update_on_host`.
        share: part of the weights' bytes, from 0 to 1, evenly over the order in which tasks first use them.

    Raises:
        UnsupportedStrategy: none of its updates can be deferred; contains the cause.
    """
    updates = host_updates(graph)
    if not (share and updates):
        return graph
    if len(updates) == 1:
        raise UnsupportedStrategy(
            "deferred_share needs an update in parts, and this one is a whole, as of one weight or with hooks on the "
            "optimizer's step; leave deferred_share out"
        )
    uses = _Uses(graph)
    refusals = [uses.refusal(tasks) for tasks in updates]
    able = [tasks for tasks, refusal in zip(updates, refusals, strict=True) if not refusal]
    if not able:
        raise UnsupportedStrategy(f"no update can be deferred: {refusals[0]}; leave deferred_share out")
    return _deferred(graph, _evenly(graph, [(uses.first(tasks), tasks) for tasks in able], share))


def deferred_updates(graph: TaskGraph) -> list[Task]:
    """Return the updates that precede the backward pass, in order."""
    first = next((task.index for task in graph.tasks if task.phase is Phase.BACKWARD), 0)
    return [task for task in graph.tasks[:first] if task.phase is Phase.UPDATE]


def host_updates(graph: TaskGraph) -> list[list[Task]]:
    """Return the host's updates, each with its tasks in order: those that share gradients, or what they write."""
    update_of: dict[int, list[Task]] = {}  # by block
    for task in graph.tasks:
        if task.on_host:
            blocks = {*task.writes, *(block for block in task.reads if not graph.blocks[block].host_location)}
            joined = {id(update_of[block]): update_of[block] for block in blocks if block in update_of}
            update = [*(each for update in joined.values() for each in update), task]
            blocks.update(block for each in update for block in each.writes)
            update_of |= dict.fromkeys(blocks, update)
    found = {id(update): update for update in update_of.values()}
    return [sorted(update, key=lambda task: task.index) for update in found.values()]


class _Uses:
    """By block, the tasks that read and that write it, in order."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._readers, self._writers = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for task in graph.tasks:
            for block in task.reads:
                self._readers[block].append(task.index)
            for block in task.writes:
                self._writers[block].append(task.index)

    def first(self, tasks: Sequence[Task]) -> int:
        """Return the first task that uses what an update changes."""
        return min(self._users({block for task in tasks for block in task.writes}, {task.index for task in tasks}))

    def refusal(self, tasks: Sequence[Task]) -> str:
        """Return why an update cannot be deferred; empty if it can."""
        own = {task.index for task in tasks}
        written = {block for task in tasks for block in task.writes}
        read = {block for task in tasks for block in task.reads}
        gradients = [block for block in read if self._graph.blocks[block].role is Role.APPLIED_GRADIENT]
        name = repr(tasks[0].name)
        if not gradients:
            return f"the gradients that {name} reads are kept behind it, or summed over micro-batches"
        for block in sorted(read.difference(gradients)):
            if self._graph.blocks[block].host_location is None:
                return f"{name} reads {self._graph.blocks[block].name!r}, which the step gives back"
        later = {*self._users(written, own), *(task for block in read for task in self._writers[block])} - own
        if max(later) > tasks[0].index:
            return f"{self._graph.tasks[max(later)].name!r} follows {name} and uses what that changes, or changes it"
        return ""

    def _users(self, blocks: Iterable[int], own: Container[int]) -> Iterator[int]:
        for block in blocks:
            yield from (task for task in (*self._readers[block], *self._writers[block]) if task not in own)


def _evenly(graph: TaskGraph, updates: list[tuple[int, list[Task]]], share: float) -> dict[int, list[Task]]:
    """Return updates of a share of the bytes of all weights, by the task that first uses their weights.

    Args:
        updates: each with that task.
    """
    due = defaultdict[int, list[Task]](list)
    seen_bytes = deferred_bytes = 0
    for first, tasks in sorted(updates, key=lambda update: update[0]):
        weights = {b for task in tasks for b in task.writes if graph.blocks[b].role is Role.WEIGHT}
        size_bytes = graph.size_bytes(weights)
        seen_bytes += size_bytes
        if deferred_bytes + size_bytes / 2 <= share * seen_bytes:
            due[first] += tasks
            deferred_bytes += size_bytes
    return due


def _deferred(graph: TaskGraph, due: dict[int, list[Task]]) -> TaskGraph:
    """Return the graph with updates moved before the tasks of these indices."""
    moved = {task.index for tasks in due.values() for task in tasks}
    read = {block for index in moved for block in graph.tasks[index].reads}
    tasks: list[Task] = []
    for task in graph.tasks:
        tasks += due.get(task.index, ())
        if task.index not in moved:
            tasks.append(task)
    blocks = (
        replace(block, role=Role.PENDING_GRADIENT, host_location=HostLocation(block.index))
        if block.index in read and block.role is Role.APPLIED_GRADIENT
        else block
        for block in graph.blocks
    )
    return replace(graph, blocks=tuple(blocks), tasks=numbered(tasks))
