"""The tasks that still have to touch each block while moDNN's simulation walks over them."""

from bisect import bisect_left, insort

import numpy as np

from membench.core.graph.task_graph import TaskGraph
from membench.planning.uses import touching_tasks
from membench.strategies.modnn.clocked_memory import MayEvict


class RemainingUses:
    """For each block the tasks that still touch it, and whether it waits for one of them on the host."""

    def __init__(self, graph: TaskGraph) -> None:
        self._uses = [uses[::-1] for uses in touching_tasks(graph)]  # the next one last
        self._next_use = np.array([uses[-1] if uses else -1 for uses in self._uses])
        # not used since it was made or prefetched
        self._is_fresh = np.zeros(len(graph.blocks), dtype=np.bool_)
        self._offloaded = sorted(
            (uses[-1], block.index)
            for block, uses in zip(graph.blocks, self._uses, strict=True)
            if block.host_location and uses
        )

    def next(self, block: int) -> int:
        """Return the next task that touches a block; it must have one."""
        return self._uses[block][-1]

    def done(self, block: int, *, created: bool) -> bool:
        """Count the next task's use of a block as done; return whether it was the last one."""
        uses = self._uses[block]
        uses.pop()
        self._is_fresh[block] = created
        if uses:
            self._next_use[block] = uses[-1]
        return not uses

    def evicted(self, block: int) -> None:
        self._is_fresh[block] = False
        insort(self._offloaded, (self.next(block), block))

    def prefetched(self, block: int) -> None:
        self._is_fresh[block] = True
        del self._offloaded[bisect_left(self._offloaded, (self.next(block), block))]

    def next_lacking(self) -> int | None:
        """Return the nearest task that lacks an input."""
        return self._offloaded[0][0] if self._offloaded else None

    def may_evict(self, until: int) -> MayEvict:
        """Return a test for blocks that no task up to and including `until` touches and that are not fresh (5.2.1)."""
        return lambda blocks: ~self._is_fresh[blocks] & (self._next_use[blocks] > until)
