"""Replay: an order of tasks, nested recomputation included, made by running tasks and dropping blocks."""

from collections.abc import Iterable

from membench.core.graph.task_graph import Phase, TaskGraph
from membench.planning.choices.problem import Problem
from membench.planning.rewrites.recompute import Order, RenamedTask


class Replay:
    """Records tasks in the order in which they run; what a task reads and is dropped runs again before it.

    A unit of the problem may be dropped and made again any number of times, each time into copies of its blocks. What
    cannot be made again is never dropped.

    Args:
        problem: finds the tasks that make a block again.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._blocks = list(problem.graph.blocks)  # and copies
        self._tasks: list[RenamedTask] = []
        self._copy: dict[int, int] = {}  # the present copy of a block that was made again
        self._dropped: set[int] = set()  # units
        self._updates, self._at_end = _updates(problem.graph)

    def finish(self) -> Order:
        """Run the update at the end of the step, if the graph has one, and return the order."""
        for index in self._at_end:
            self.run(index)
        return Order(tuple(self._tasks), tuple(self._blocks))

    def run(self, index: int) -> None:
        """Run a task of the graph, and the updates of weights that follow it."""
        for each in (index, *self._updates.get(index, ())):
            self.provide(self._problem.graph.tasks[each].reads)
            self._append(each)

    def provide(self, blocks: Iterable[int]) -> None:
        """Make those of the blocks again that are dropped, with what that reads, in the order of the graph."""
        units = self._dropped_behind(blocks)
        makers = sorted({maker for unit in units for maker in self._problem.units[unit].makers})
        for maker in makers:
            operation = self._problem.again[maker]
            extra = dict[int, int]()
            for block in self._problem.operations[operation].creates:
                copies = self._copy if self._problem.unit_of.get(block) in units else extra
                copies[block] = len(self._blocks)
                self._blocks.append(self._problem.graph.blocks[block])
            self._append(operation, extra)
        self._dropped -= units

    def drop(self, units: Iterable[int]) -> None:
        """Drop units; nothing reads their present blocks any more."""
        self._dropped.update(unit for unit in units if self._problem.units[unit].makers)

    def _append(self, operation: int, extra: dict[int, int] | None = None) -> None:
        present = self._copy | extra if extra else self._copy
        touched = self._problem.touched[operation]
        copies = {block: present[block] for block in touched if block in present}
        self._tasks.append(RenamedTask(self._problem.operations[operation], copies))

    def _dropped_behind(self, blocks: Iterable[int]) -> set[int]:
        """Return the dropped units that have to be made before these blocks can be read."""
        problem, found = self._problem, set[int]()
        left = list(blocks)
        while left:
            unit = problem.unit_of.get(left.pop(), -1)
            if unit in self._dropped and unit not in found:
                found.add(unit)
                left += problem.units[unit].inputs
        return found


def _updates(graph: TaskGraph) -> tuple[dict[int, list[int]], list[int]]:
    """Return the updates of weights in the backward pass, by the task that they follow, and those behind it."""
    behind: dict[int, list[int]] = {}
    last = -1
    for task in graph.tasks:
        if task.phase is Phase.UPDATE:
            behind.setdefault(last, []).append(task.index)
        else:
            last = task.index
    at_end = behind.pop(last, [])
    return behind, at_end
