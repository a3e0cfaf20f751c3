"""The order of compiled tasks: gradients of weights that are larger than what they are made from are made last.

    dw = dy^T x     dx = dy w    ...        ->      dx = dy w    ...     dw = dy^T x      dy and x wait in place of dw

A gradient of a weight is held until the step ends, whenever it is made. As Inductor orders its kernels
(``torch._inductor.memory``, `reorder_for_peak_memory`), tasks move only where that lowers the peak of the step without
a method.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from membench.core.graph.task_graph import RESULT_ROLES, Phase, Task, TaskGraph

_CONVOLUTION_BACKWARD = "aten.convolution_backward.default"


def with_late_gradients(graph: TaskGraph, tasks: Sequence[Task]) -> list[Task]:
    """Return tasks of a graph in an order whose peak is lower, or as they were; the time is quadratic in what moves.

    Args:
        tasks: in an order in which they can run; their indices do not count.
    """
    order, best = list(tasks), _peak(graph, tasks)
    while (move := _best_move(graph, order, best.position)) is not None:
        moved = [*order]
        moved.insert(move.target - 1, moved.pop(move.position))
        peak = _peak(graph, moved)
        if peak.size_bytes >= best.size_bytes:
            break
        order, best = moved, peak
    return order


@dataclass(frozen=True, slots=True, order=True)
class _Move:
    """A task that waits.

    Attributes:
        saved_bytes: what is held less until it runs, at least.
        target: the position of the first task that has to run after it.
    """

    saved_bytes: int
    position: int
    target: int


@dataclass(frozen=True, slots=True)
class _Peak:
    size_bytes: int
    position: int


def _peak(graph: TaskGraph, tasks: Sequence[Task]) -> _Peak:
    """Return the most bytes of blocks that the step makes, each given back after its last use, and the task."""
    last = {block: at for at, task in enumerate(tasks) for block in (*task.reads, *task.writes)}
    change = [0] * (len(tasks) + 1)
    for at, task in enumerate(tasks):
        for block in task.creates:
            change[at] += graph.blocks[block].size_bytes
            if graph.blocks[block].is_transient:
                change[last[block] + 1] -= graph.blocks[block].size_bytes
    held = list(accumulate(change))
    highest = max(range(len(tasks)), key=held.__getitem__)
    return _Peak(held[highest], highest)


def _best_move(graph: TaskGraph, tasks: Sequence[Task], peak: int) -> _Move | None:
    """Return the move past the peak that saves the most; None if there is none."""
    return max(_moves(graph, tasks, peak), default=None)


def _moves(graph: TaskGraph, tasks: Sequence[Task], peak: int) -> Iterator[_Move]:
    touching: defaultdict[int, list[int]] = defaultdict(list)
    writing: defaultdict[int, list[int]] = defaultdict(list)
    for at, task in enumerate(tasks):
        for block in {*task.reads, *task.writes}:
            touching[block].append(at)
        for block in task.writes:
            writing[block].append(at)
    end = next((at for at, task in enumerate(tasks) if task.phase is Phase.UPDATE), len(tasks))
    for position, task in enumerate(tasks[: peak + 1]):
        if not _may_wait(graph, task):
            continue
        saved_bytes = graph.size_bytes(task.creates) - sum(
            graph.blocks[block].size_bytes for block in task.reads if graph.blocks[block].is_transient
        )
        after = [at for block in task.writes for at in touching[block] if at > position]
        after += [at for block in task.reads for at in writing[block] if at > position]
        target = min(after, default=end)
        if saved_bytes > 0 and target > peak + 1:
            yield _Move(saved_bytes, position, target)


def _may_wait(graph: TaskGraph, task: Task) -> bool:
    """Return whether a task only makes results.

    The gradient of a convolution's weight is one call with that of its input.
    """
    return (
        task.phase is Phase.BACKWARD
        and not task.random
        and task.collective is None
        and task.writes == task.creates
        and any(graph.blocks[block].role in RESULT_ROLES for block in task.creates)
        and (task.call is None or task.call.operator != _CONVOLUTION_BACKWARD)
    )
