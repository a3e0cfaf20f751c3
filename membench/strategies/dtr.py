"""DTR: evict the tensor that is cheap to compute again, large and long unused; compute it again when it is read.

Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021. A runtime: operators run in the program's order, and
where one finds too little memory, tensors are evicted, one after another, by the least h(t) = c(t) / (m(t) s(t))
(Section 3.2): c is the time to compute a tensor again, with its evicted neighbours (h_DTR-eq's sets: what is evicted
and would have to be computed first); m its bytes; s the time since it was last read. An operator that reads an evicted
tensor computes it again, and what that reads, while evicting as before. Nothing is copied to the host.

Readings. The runtime is played with the cost model's times, and becomes a schedule in which a tensor is freed when its
last reader before an eviction has run, earlier than the runtime would. Neighbours are found by following evicted inputs
(the paper's e*, of which its union-find is an approximation), and not those that would be computed from a tensor. What
the runtime is computing, with all that it reads, is locked. What cannot be computed again (masks of dropout) is counted
for as long as something may be computed from it. h is found anew only for tensors that may have the least. Without a
budget nothing is evicted.

Not memonger, which plans segments ahead.
"""

from collections import defaultdict
from math import inf

import numpy as np

from membench.core.errors import MembenchError
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import RESULT_ROLES, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.choices.problem import Problem
from membench.planning.rewrites.recompute import Order, RenamedTask, reordered
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand


class Dtr(Strategy):
    """Dynamic tensor rematerialisation: evict the least costly by size and staleness (Kirisame et al. 2021).

    Args:
        longest: refuse a schedule with more than that many times as many tasks as the graph has, as soon as it is that
            long.
        slowest_s: refuse a schedule whose tasks compute for longer, as soon as they do.
    """

    name = "dtr"

    def __init__(self, longest: float = inf, slowest_s: float = inf) -> None:
        self.longest, self._slowest_s = longest, slowest_s

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        problem = Problem(join_convolution_backward(graph, cost), cost, 1)
        runtime = _Runtime(problem, budget_bytes or inf, self.longest, self._slowest_s)
        builder = ScheduleBuilder(self.name, reordered(problem.graph, runtime.run()), budget_bytes=budget_bytes)
        compute_on_demand(builder, builder.graph.tasks)
        return builder.finish()


class _Runtime:
    """Plays the runtime, and records the order of operations."""

    def __init__(self, problem: Problem, budget_bytes: float, longest: float, slowest_s: float) -> None:
        self._problem, self._graph = problem, problem.graph
        self._most_tasks = longest * len(problem.graph.tasks)
        self._most_again_s = slowest_s - problem.compute_s
        self._spent_again_s = 0.0
        self._budget_bytes = budget_bytes
        self._blocks = list(problem.graph.blocks)  # and copies
        self._tasks: list[RenamedTask] = []
        self._copy: dict[int, int] = {}  # the present copy of a block that was computed again
        self._resident: set[int] = set()  # blocks, by their original
        self._made: set[int] = set()
        self._held_bytes = problem.graph.external_bytes
        self._now_s = 0.0
        self._evictable = {b for unit in problem.units if unit.makers for b in unit.blocks}
        self._may_leave = np.zeros(len(self._blocks), np.bool_)  # resident and evictable
        self._size_bytes = np.array([max(1, block.size_bytes) for block in self._blocks], dtype=np.float64)
        self._read_s = np.zeros(len(self._blocks))
        self._again_s = np.zeros(len(self._blocks))  # c(t), or where it is stale at most that
        self._stale = set(range(len(problem.units)))
        self._affects: defaultdict[int, set[int]] = defaultdict(set)  # units whose c(t) a unit's eviction changes
        self._last_needed = self._find_last_needed()
        self._dying: defaultdict[int, list[int]] = defaultdict(list)

    def run(self) -> Order:
        """Run all tasks and return their order."""
        for task in self._graph.tasks:
            self._provide(task.index, set())
            for block in self._problem.touched[task.index]:
                self._dying[self._last_needed[block]].append(block)
            for block in self._dying.pop(task.index, ()):
                if block in self._resident and self._graph.blocks[block].role not in RESULT_ROLES:
                    self._drop(block)
        return Order(tuple(self._tasks), tuple(self._blocks))

    def _find_last_needed(self) -> list[int]:
        """Return the last task that needs each block and, unless it is evictable, what is computed from it."""
        found = list(self._graph.last_use)
        behind = found.copy()
        for index in sorted((m for unit in self._problem.units for m in unit.makers), reverse=True):
            again = self._problem.operations[self._problem.again[index]]
            latest = max(behind[block] for block in again.writes)
            for block in again.reads:
                behind[block] = max(behind[block], latest)
                if block not in self._evictable:
                    found[block] = behind[block]
        return found

    def _provide(self, index: int, locked: set[int]) -> None:
        """Compute what a task reads and is evicted, in the order of the graph, and then run the task."""
        reads = set(self._graph.tasks[index].reads)
        missing = self._evicted_behind(reads)
        makers = sorted({m for unit in missing for m in self._problem.units[unit].makers})
        for maker in makers:
            self._run(maker, again=True, locked=locked | reads)
        self._run(index, again=False, locked=locked | reads)

    def _run(self, index: int, *, again: bool, locked: set[int]) -> None:
        problem = self._problem
        operation = problem.again[index] if again else index
        task = problem.operations[operation]
        created = [block for block in task.creates if not (again and block in self._resident)]
        size_bytes = self._graph.size_bytes(task.creates) + task.workspace_bytes
        self._make_room(size_bytes, locked | set(problem.touched[operation]))
        copies = {block: self._copy[block] for block in problem.touched[operation] if block in self._copy}
        for block in task.creates if again else ():
            copies[block] = len(self._blocks)
            self._blocks.append(self._graph.blocks[block])
            if block in created:
                self._copy[block] = copies[block]
        for block in created:
            self._resident.add(block)
            self._made.add(block)
            self._held_bytes += self._graph.blocks[block].size_bytes
            self._set_evictable(block, is_resident=True)
        self._tasks.append(RenamedTask(task, copies))
        if len(self._tasks) > self._most_tasks:
            raise MembenchError(f"dtr runs more than {self._most_tasks:,.0f} tasks within {self._budget_bytes:,} bytes")
        self._spent_again_s += problem.duration_s[operation] if again else 0.0
        if self._spent_again_s > self._most_again_s:
            raise MembenchError(f"dtr computes for longer than asked for within {self._budget_bytes:,} bytes")
        self._now_s += problem.duration_s[operation]
        self._read_s[list(problem.touched[operation])] = self._now_s

    def _make_room(self, size_bytes: int, locked: set[int]) -> None:
        """Evict the tensors of least h until there is room, or nothing is left to evict."""
        if self._held_bytes + size_bytes <= self._budget_bytes:
            return
        may_leave = self._may_leave.copy()
        may_leave[list(locked)] = False
        staleness_s = np.maximum(self._now_s - self._read_s, 1e-12)
        while self._held_bytes + size_bytes > self._budget_bytes and may_leave.any():
            h = np.where(may_leave, self._again_s / (self._size_bytes * staleness_s), inf)
            block = int(h.argmin())
            unit = self._problem.unit_of[block]
            if unit in self._stale:  # it may be larger
                self._refresh(unit)
            else:
                may_leave[block] = False
                self._drop(block)

    def _refresh(self, number: int) -> None:
        """Find the time to compute a unit again, with its evicted neighbours."""
        self._stale.remove(number)
        units = self._problem.units
        neighbours = self._evicted_behind(set(units[number].inputs), number)
        neighbours_s = sum(units[n].remake_s for n in sorted(neighbours))
        self._again_s[list(units[number].blocks)] = units[number].remake_s + neighbours_s

    def _evicted_behind(self, reads: set[int], of: int | None = None) -> set[int]:
        """Return the units that have to be computed before these blocks can be read.

        Args:
            of: the unit whose c(t) depends on them.
        """
        problem, found = self._problem, set[int]()
        left = [block for block in reads if block in self._evictable]
        while left:
            block = left.pop()
            unit = problem.unit_of[block]
            if of is not None:
                self._affects[unit].add(of)
            if block in self._resident or block not in self._made or unit in found:
                continue
            found.add(unit)
            left += (b for b in problem.units[unit].inputs if b in self._evictable)
        return found

    def _drop(self, block: int) -> None:
        self._resident.remove(block)
        self._held_bytes -= self._graph.blocks[block].size_bytes
        self._set_evictable(block, is_resident=False)

    def _set_evictable(self, block: int, *, is_resident: bool) -> None:
        if block in self._evictable:
            self._may_leave[block] = is_resident
            affected = self._affects.pop(self._problem.unit_of[block], set())
            self._stale |= affected
            for number in affected if is_resident else ():
                unit = self._problem.units[number]
                self._again_s[list(unit.blocks)] = unit.remake_s
