"""Gathered weights that stay from the forward to the backward pass, as a rewrite of a rank's graph.

    forward:   gather w, use w          w is given back              forward:   gather w, use w
    backward:  gather w', use w'                              ->     backward:  use w

A graph of `planning.parallel.sharding` gathers weights for each pass, into a block for each, of which the second
`repeats` the first. Without the second one, "gather again" is a recomputation like any other: the tasks that fill a
block of the forward pass run again.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from membench.core.graph.changed_tasks import numbered, rename_blocks
from membench.core.graph.task_graph import Role, Task, TaskGraph


def gathered_once(graph: TaskGraph) -> TaskGraph:
    """Return the graph in which no weights are gathered again; the blocks keep their indices."""
    return graph.map(_gathered_once) if any(block.repeats is not None for block in graph.blocks) else graph


def _gathered_once(graph: TaskGraph) -> TaskGraph:
    first = {block.index: block.repeats for block in graph.blocks if block.repeats is not None}
    if not first:
        return graph
    needless = _only_for(graph, first)
    kept = (rename_blocks(task, first) for task in graph.tasks if task.index not in needless)
    return replace(graph, tasks=numbered(_released_once(list(kept), first)))


def _only_for(graph: TaskGraph, blocks: Collection[int]) -> set[int]:
    """Return the tasks that fill these blocks, those that fill buffers for them, and those that only wait for these."""
    readers = [set[int]() for _ in graph.blocks]
    for task in graph.tasks:
        for block in task.reads:
            readers[block].add(task.index)
    found = set[int]()
    buffers = {block.index for block in graph.blocks if block.role is Role.GATHERED}
    for task in reversed(graph.tasks):
        waits = not task.writes and bool(task.reads) and buffers.issuperset(task.reads)
        makes = task.writes and all(
            block in blocks or (block in buffers and readers[block] <= found) for block in task.writes
        )
        if makes or (waits and _is_repeated(graph, task, blocks)):
            found.add(task.index)
    return found


def _is_repeated(graph: TaskGraph, task: Task, blocks: Collection[int]) -> bool:
    """Return whether what a task waits for was sent and gathered for these blocks."""
    makers = [each for each in graph.tasks[: task.index] if not set(task.reads).isdisjoint(each.creates)]
    return any(not set(each.creates).isdisjoint(blocks) for each in makers)


def _released_once(tasks: list[Task], first: dict[int, int]) -> Iterable[Task]:
    """Yield the tasks of a plain graph, which give a block back for the last time that they did."""
    of_first, released = set(first.values()), set[int]()
    found = []
    for task in reversed(tasks):
        releases = tuple(
            block
            for block in (first.get(each, each) for each in task.releases)
            if block not in of_first or block not in released
        )
        released.update(of_first.intersection(releases))
        found.append(task if releases == task.releases else replace(task, releases=releases))
    return reversed(found)
