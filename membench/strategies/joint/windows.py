"""Windows of a step in which its collectives run: lower bounds on its time.

Collectives of one axis of a mesh run one after another. Each begins behind the last task of the compute stream that
makes what it sends (its *release*), and ends before the first one that uses what it receives (its *deadline*). Those
that are released behind one task and due before a later one therefore take place in the time from the end of the former
to the start of the latter, which is that of the tasks between them, and of what the compute stream does or waits for in
addition there. Updates run when a schedule likes, so that what they use is due at the end of the step.

A running collective takes a share of the device's processors from kernels: the next kernel is longer by that share of
the collective's time, less what the device has been idle before it. The launch of that kernel, which is counted in its
time, is such an idle time, and others are in addition to all tasks. So the step is longer than its tasks by the sum of
these shares, less a launch for each.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from membench.core.graph.task_graph import Phase
from membench.planning.choices.problem import Problem

BOUNDARIES = 8
"""Number of releases, and of deadlines, of which each pair is a window of the linear program."""

Gathers = tuple[tuple[str, float, float], ...]
"""Axis and seconds of collectives, and by how much they make kernels longer."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of the graph.

    Attributes:
        released: the last task of the compute stream that it depends on, -1 if none; `due`: the first one before the
            update that depends on it, or the number of tasks.
        delay_s: by which it makes kernels longer, at least.
    """

    axis: str
    time_s: float
    delay_s: float
    released: int
    due: int


def find_exchanges(problem: Problem) -> list[Exchange]:
    """Return the collectives of a problem's graph, in order."""
    graph = problem.graph
    ready, released = [-1] * len(graph.blocks), dict[int, int]()
    last = -1  # task of the compute stream
    for task in graph.tasks:
        if task.collective:
            released[task.index] = max(ready[block] for block in (*task.reads, *task.writes))
        elif not task.on_host:
            last = task.index
        for block in task.writes:
            ready[block] = released.get(task.index, task.index)
    due, needed = dict[int, int](), [len(graph.tasks)] * len(graph.blocks)
    for task in reversed(graph.tasks):
        if task.collective:
            due[task.index] = min((needed[block] for block in task.writes), default=len(graph.tasks))
        for block in () if task.phase is Phase.UPDATE else (*task.reads, *task.writes):
            needed[block] = due.get(task.index, task.index)
    return [
        Exchange(
            task.collective.axis,
            problem.collective_s[task.index],
            _least_delay_s(problem, task.index) if task.index < last else 0.0,
            released[task.index],
            due[task.index],
        )
        for task in graph.tasks
        if task.collective
    ]


def gathers(problem: Problem, unit: int) -> Gathers:
    """Return the collectives that make a unit again."""
    again = (problem.again[task] for task in problem.units[unit].makers)
    return tuple(
        (collective.axis, problem.collective_s[operation], _least_delay_s(problem, operation))
        for operation in again
        if (collective := problem.operations[operation].collective)
    )


def _least_delay_s(problem: Problem, operation: int) -> float:
    launch_s = max(problem.launch_s[1 : len(problem.graph.tasks)], default=0.0)  # the step's is before the first
    return max(0.0, problem.delay_s[operation] - launch_s)


def least_with_collectives_s(problem: Problem) -> float:
    """Return the largest bound of all windows on the time of the problem's graph."""
    starts = np.concatenate(([0.0], np.cumsum(problem.duration_s[: len(problem.graph.tasks)])))
    exchanges = find_exchanges(problem)
    found = problem.compute_s + sum(each.delay_s for each in exchanges)
    by_axis = defaultdict[str, list[Exchange]](list)
    for exchange in sorted(exchanges, key=lambda each: each.due):
        by_axis[exchange.axis].append(exchange)
    for of_axis in by_axis.values():
        for first in {each.released for each in of_axis}:
            inside = [each for each in of_axis if each.released >= first]
            due = np.array([each.due for each in inside])
            window_s = np.cumsum([each.time_s for each in inside])
            found = max(found, float((starts[first + 1] + window_s + starts[-1] - starts[due]).max()))
    return found


def windows(exchanges: Sequence[Exchange], at: Callable[[int], int]) -> Iterator[tuple[int, int, str, float]]:
    """Yield windows of moments: the first, that behind the last, the axis, its collectives' seconds between.

    Args:
        at: returns the first moment at or behind a task.
    """
    placed = [(at(each.released + 1), at(each.due), each) for each in exchanges]
    starts, ends = _boundaries([start for start, _, _ in placed]), _boundaries([end for _, end, _ in placed])
    for axis, start, end in product(sorted({each.axis for each in exchanges}), starts, ends):
        inside = [each for a, b, each in placed if a >= start and b <= end and each.axis == axis]
        if inside:
            yield start, end, axis, sum(each.time_s for each in inside)


def _boundaries(moments: Sequence[int]) -> list[int]:
    """Return some of the moments in order, the first and the last among them."""
    found = sorted(set(moments))
    if len(found) <= BOUNDARIES:
        return found
    return [found[round(n * (len(found) - 1) / (BOUNDARIES - 1))] for n in range(BOUNDARIES)]
