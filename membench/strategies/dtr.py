"""DTR: evict the tensor that is cheap to compute again, large and long unused; compute it again when it is read.

Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021. A runtime: operators run in the program's order, and where one
finds too little memory, tensors are evicted, one after another, by the least h(t) = c(t) / (m(t) s(t)) (Section 3.2): c is
the time to compute a tensor again, with its evicted neighbours (h_DTR-eq's sets: what is evicted and would have to be
computed first); m its bytes; s the time since it was last read. An operator that reads an evicted tensor computes it again,
and what that reads, while evicting as before. Nothing is copied to the host.

Readings. The runtime is played with the cost model's times, and becomes a schedule in which a tensor is freed when its last
reader before an eviction has run, earlier than the runtime would. Neighbours are found by following evicted inputs (the
paper's e*, of which its union-find is an approximation), and not those that would be computed from a tensor. What the
runtime is computing, with all that it reads, is locked. Without a budget nothing is evicted.

Not memonger, which plans segments ahead.
"""

from math import inf

from membench.core.cost_model import CostModel
from membench.core.schedule import Schedule
from membench.core.task_graph import RESULT_ROLES, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.choices.problem import Problem
from membench.planning.recompute import Order, RenamedTask, reordered
from membench.planning.rewrite import join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand


class Dtr(Strategy):
    """Dynamic tensor rematerialisation: evict the least costly by size and staleness (Kirisame et al. 2021)."""

    name = "dtr"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        problem = Problem(join_convolution_backward(graph, cost), cost, 1)
        runtime = _Runtime(problem, budget_bytes or inf)
        builder = ScheduleBuilder(
            self.name, reordered(problem.graph, runtime.run()), budget_bytes=budget_bytes
        )
        compute_on_demand(builder, builder.graph.tasks)
        return builder.finish()


class _Runtime:
    """Plays the runtime, and records the order of operations."""

    def __init__(self, problem: Problem, budget_bytes: float) -> None:
        self._problem, self._graph = problem, problem.graph
        self._budget_bytes = budget_bytes
        self._blocks = list(problem.graph.blocks)  # and copies
        self._tasks: list[RenamedTask] = []
        self._copy: dict[int, int] = {}  # the present copy of a block that was computed again
        self._resident: set[int] = set()  # blocks, by their original
        self._made: set[int] = set()
        self._read_s: dict[int, float] = {}
        self._held_bytes = problem.graph.external_bytes
        self._now_s = 0.0
        self._evictable = {b for unit in problem.units if unit.makers for b in unit.blocks}

    def run(self) -> Order:
        """Run all tasks and return their order."""
        for task in self._graph.tasks:
            self._provide(task.index, set())
            for block in self._problem.touched[task.index]:
                is_last = self._graph.last_use[block] == task.index
                if is_last and block in self._resident and self._graph.blocks[block].role not in RESULT_ROLES:
                    self._drop(block)
        return Order(tuple(self._tasks), tuple(self._blocks))

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
        size_bytes = self._graph.size_bytes(created) + task.workspace_bytes
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
        self._tasks.append(RenamedTask(task, copies))
        self._now_s += problem.duration_s[operation]
        for block in problem.touched[operation]:
            self._read_s[block] = self._now_s

    def _make_room(self, size_bytes: int, locked: set[int]) -> None:
        """Evict the tensors of least h until there is room, or nothing is left to evict."""
        while self._held_bytes + size_bytes > self._budget_bytes:
            candidates = (self._resident & self._evictable) - locked
            if not candidates:
                return
            self._drop(min(candidates, key=lambda block: (self._h(block), block)))

    def _h(self, block: int) -> float:
        problem = self._problem
        unit = problem.units[problem.unit_of[block]]
        neighbours = self._evicted_behind(set(unit.inputs))
        seconds = unit.remake_s + sum(problem.units[n].remake_s for n in neighbours)
        staleness_s = self._now_s - self._read_s[block]
        return seconds / (self._graph.blocks[block].size_bytes * max(staleness_s, 1e-12))

    def _evicted_behind(self, reads: set[int]) -> set[int]:
        """Return the units that have to be computed before these blocks can be read."""
        problem, found = self._problem, set[int]()
        left = [block for block in reads if block in self._evictable]
        while left:
            block = left.pop()
            unit = problem.unit_of[block]
            if block in self._resident or block not in self._made or unit in found:
                continue
            found.add(unit)
            left += problem.units[unit].inputs
        return found

    def _drop(self, block: int) -> None:
        self._resident.remove(block)
        self._held_bytes -= self._graph.blocks[block].size_bytes
