"""Offloads and prefetches for tasks in a given order, under a budget.

before a task:   while its blocks do not fit: evict the resident block that is needed last
                     [after an offload, unless the host has a copy]
                 prefetch what it reads
                 prefetch what following tasks read, as long as nothing has to be evicted for it
after it:        free dead blocks

The peak keeps the budget wherever each task alone does. Evicting the block that is needed last: Belady, "A study of
replacement algorithms for a virtual-storage computer" (IBM Systems Journal, 1966), the fewest fetches when all blocks
are of one size.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from membench.core.graph.task_graph import RESULT_ROLES, Task
from membench.planning.builder import ScheduleBuilder
from membench.planning.uses import touching_tasks


class Residency:
    """Runs the tasks of a builder's graph in the graph's order.

    Args:
        builder: gets the instructions.
        budget_bytes: the most that may be held.
        horizon: for each task the index after the last task whose blocks may be prefetched while it runs.
    """

    def __init__(self, builder: ScheduleBuilder, budget_bytes: int, horizon: Sequence[int]) -> None:
        self._builder = builder
        self._graph = builder.graph
        self._budget_bytes = budget_bytes
        self._horizon = horizon
        self._size_bytes = [0 if block.is_external else block.size_bytes for block in self._graph.blocks]
        self._uses = [deque(tasks) for tasks in touching_tasks(self._graph)]
        self._movable: dict[int, None] = {}  # resident blocks that a later task touches

    def run(self) -> None:
        for task in self._graph.tasks:
            missing = self._missing(task)
            room_bytes = self._total(missing) + self._total(task.creates) + task.workspace_bytes
            self._make_room(task, room_bytes)
            for block in missing:
                self._fetch(block)
            self._fetch_ahead(task)
            self._builder.compute(task)
            self._movable.update(dict.fromkeys(b for b in task.creates if self._size_bytes[b]))
            self._free_dead(task)

    def _make_room(self, task: Task, room_bytes: int) -> None:
        """Evict the blocks that are needed last, until that many bytes are free."""
        touched = {*task.reads, *task.writes}
        while self._builder.live_bytes + room_bytes > self._budget_bytes:
            others = [block for block in self._movable if block not in touched]
            if not others:
                return  # the builder will refuse the peak
            block = max(others, key=lambda other: (self._uses[other][0], other))
            if not self._builder.is_on_host(block):
                self._builder.offload(block)
            self._builder.free(block)
            del self._movable[block]

    def _fetch_ahead(self, task: Task) -> None:
        """Prefetch in order what following tasks read, while it fits together with all that is held until then."""
        held_bytes = self._builder.live_bytes + self._total(task.creates)
        spare_bytes = self._budget_bytes - held_bytes - task.workspace_bytes
        coming: set[int] = set()
        for index in range(task.index + 1, self._horizon[task.index]):
            following = self._graph.tasks[index]
            before = self._graph.tasks[index - 1]
            held_bytes -= self._total(b for b in {*before.reads, *before.writes} if self._is_over(b, index))
            held_bytes += self._total(following.creates)
            spare_bytes = min(spare_bytes, self._budget_bytes - held_bytes - following.workspace_bytes)
            for block in self._missing(following):
                if block in coming or not self._builder.is_on_host(block):
                    continue  # it will have been created by then
                if self._size_bytes[block] > spare_bytes:
                    return
                self._fetch(block)
                coming.add(block)
                held_bytes += self._size_bytes[block]
                spare_bytes -= self._size_bytes[block]

    def _free_dead(self, task: Task) -> None:
        for block in {*task.reads, *task.writes}:
            self._uses[block].popleft()
            if not self._uses[block]:
                self._movable.pop(block, None)
        self._builder.free_dead()

    def _is_over(self, block: int, index: int) -> bool:
        """Return whether a block is dead when a task begins."""
        return self._graph.last_use[block] < index and self._graph.blocks[block].role not in RESULT_ROLES

    def _fetch(self, block: int) -> None:
        self._builder.prefetch(block)
        self._movable[block] = None

    def _missing(self, task: Task) -> list[int]:
        return [b for b in task.reads if not self._graph.blocks[b].is_external and not self._builder.is_resident(b)]

    def _total(self, blocks: Iterable[int]) -> int:
        return sum(self._size_bytes[block] for block in blocks)
