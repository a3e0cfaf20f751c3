"""The memory that each task needs in the pool, independent of the tasks before it."""

from collections.abc import Iterable
from itertools import accumulate

from membench.core.errors import InfeasibleSchedule
from membench.core.graph.task_graph import Task, TaskGraph
from membench.planning.pool import aligned
from membench.planning.uses import touching_tasks


class PoolNeeds:
    """The blocks of a graph's tasks that lie in moDNN's pool, and their bytes.

    Attributes:
        capacity_bytes: the pool's capacity, the part of a budget that is left for it; None: unlimited.
        next_defragmentation: for each task the next one, itself included, whose inputs could be prefetched only to be
            evicted again; behind the last one the number of tasks.
    """

    def __init__(self, graph: TaskGraph, budget_bytes: int | None) -> None:
        self._graph = graph
        self._budget_bytes = budget_bytes
        self._outside_bytes = graph.external_bytes + graph.result_bytes
        self._in_pool = [block.is_transient for block in graph.blocks]
        touched = ((task, dict.fromkeys((*task.reads, *task.writes))) for task in graph.tasks)
        self._inputs = [self._pooled(b for b in blocks if b not in task.creates) for task, blocks in touched]
        self.capacity_bytes = None if budget_bytes is None else max(0, budget_bytes - self._outside_bytes)
        self.next_defragmentation = self._predict_defragmentation()

    def inputs(self, task: Task) -> list[int]:
        """Return the blocks that must be resident: what the task reads, and what it writes without creating it."""
        return self._inputs[task.index]

    def outputs(self, task: Task) -> list[int]:
        """Return the blocks that the task creates."""
        return self._pooled(task.creates)

    def pending(self, task: Task, workspace_bytes: int) -> list[int]:
        """Return the sizes in bytes that a task takes when it runs, in that order."""
        return [*(self._graph.blocks[block].size_bytes for block in self.outputs(task)), workspace_bytes]

    def fits_alone(self, task: Task, workspace_bytes: int) -> bool:
        """Return whether a task has room in an empty pool."""
        return self.capacity_bytes is None or self._needed_bytes(task, workspace_bytes) <= self.capacity_bytes

    def refusal(self) -> InfeasibleSchedule:
        """Return the error for a budget below Equation 7; it names the task that needs the most memory."""
        assert self._budget_bytes is not None
        needed_bytes, task = max(
            (self._needed_bytes(task, task.workspace_bytes), task.name) for task in self._graph.tasks
        )
        return InfeasibleSchedule(
            task=task,
            needed_bytes=self._outside_bytes + needed_bytes,
            budget_bytes=self._budget_bytes,
            lower_bound_bytes=self._graph.lower_bound_bytes,
        )

    def _predict_defragmentation(self) -> list[int]:
        """Return `next_defragmentation` (5.2.2).

        Everything that may be evicted is taken as evicted and every prefetch as done: in addition to the task's own
        blocks, the pool holds those that were made and not used yet. If even then the task has no room, everything will
        have to be evicted. Contiguity is ignored.
        """
        tasks = self._graph.tasks
        changes_bytes = [0] * (len(tasks) + 1)
        for block, uses in zip(self._graph.blocks, touching_tasks(self._graph), strict=True):
            if self._in_pool[block.index] and len(uses) > 1 and not block.host_location:
                changes_bytes[uses[0] + 1] += aligned(block.size_bytes)
                changes_bytes[uses[1]] -= aligned(block.size_bytes)
        locked_bytes = list(accumulate(changes_bytes))
        following = [len(tasks)] * (len(tasks) + 1)
        for task in reversed(tasks):
            needed_bytes = locked_bytes[task.index] + self._needed_bytes(task, task.workspace_bytes)
            is_full = self.capacity_bytes is not None and needed_bytes > self.capacity_bytes
            following[task.index] = task.index if is_full else following[task.index + 1]
        return following

    def _needed_bytes(self, task: Task, workspace_bytes: int) -> int:
        blocks = (*self.inputs(task), *self.outputs(task))
        sizes_bytes = (*(self._graph.blocks[block].size_bytes for block in blocks), workspace_bytes)
        return sum(map(aligned, sizes_bytes))

    def _pooled(self, blocks: Iterable[int]) -> list[int]:
        return [block for block in blocks if self._in_pool[block]]
