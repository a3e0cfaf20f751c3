"""The choices that a graph offers: which stored blocks can leave or be made again, and what that costs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from membench.core.graph.task_graph import EXTERNAL_ROLES, RESULT_ROLES, Phase, Role, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.rewrites.recompute import Repeatable

KEEP, OFFLOAD, RECOMPUTE, REPEAT = range(4)
"""The fate of a unit between its last use of the forward pass and its first of the backward pass.

`RECOMPUTE`: once, before the first task that needs it; `REPEAT`: for each layer of the backward pass anew. A block
whose home is in host memory is on the device throughout (`KEEP`; from its first use to its last where a task of the
host writes it), or comes for its uses and leaves after them (`OFFLOAD`).
"""

Choices = Sequence[int]
"""The fate of each unit of a problem."""


SMALLEST_SHARE = 1 / 128
"""Blocks smaller than this share of the largest one are not worth a choice."""


def large_bytes(graph: TaskGraph) -> int:
    """Return the size from which on a choice about a block is worth while."""
    largest = max((block.size_bytes for block in graph.blocks if block.is_transient), default=0)
    return max(1, int(largest * SMALLEST_SHARE))


@dataclass(frozen=True, slots=True)
class Unit:
    """Blocks that the same tasks write, and about which one choice is made.

    Attributes:
        makers: tasks that make the blocks again, in order; empty: they cannot be made again. Of gathered weights, in a
            unit with the buffers that they pass through: the tasks that gather them.
        inputs: other blocks that may be dropped and that the makers read.
        remake_s: seconds of the compute stream to make the blocks again.
        stored: whether the backward pass reads any of the blocks.
        gather_s: seconds of the collectives among the makers, on their own stream.
    """

    blocks: tuple[int, ...]
    size_bytes: int
    makers: tuple[int, ...]
    inputs: tuple[int, ...]
    remake_s: float
    stored: bool
    gather_s: float = 0.0


class Problem:
    """A graph with its costs, prepared for any number of choices.

    Args:
        graph: annotated.
        least_bytes: smaller blocks are kept.
        time_s: seconds of a task; None: the cost model's, with the algorithm that the task has.

    Attributes:
        operations: the graph's tasks, and behind them those that can run again.
        again: the position among `operations` in which a task of the graph runs again.
        touched: the blocks on the device that each operation touches; a task of the host touches none.
        duration_s: seconds of each operation on the compute stream, with its launch.
        collective_s: seconds of each operation on the stream of collectives; none has both.
        delay_s: by which each collective makes kernels longer that run at the same time; copy_delay_s: by which each
            block's copy does.
        host_s: seconds of each task of the host, by task, in order.
        visitors: the blocks that tasks of the host write, and those at home there that they read from the device.
        sent: the blocks that each task of the host reads and tasks of the device write, by task.
        units: all choices; `unit_of` finds a block's.
    """

    def __init__(
        self, graph: TaskGraph, cost: CostModel, least_bytes: int, time_s: Callable[[Task], float] | None = None
    ) -> None:
        time_s = time_s or cost.task_time_s
        self.graph = graph
        self.least_bytes = least_bytes
        self.repeatable = Repeatable(graph, cost)
        count = len(graph.tasks)
        self.operations: tuple[Task, ...] = (*graph.tasks, *self.repeatable.again.values())
        self.again = {index: count + n for n, index in enumerate(self.repeatable.again)}
        self.touched = tuple(() if t.on_host else tuple(dict.fromkeys((*t.reads, *t.writes))) for t in self.operations)
        self.duration_s = tuple(
            0.0 if t.on_host or t.collective else cost.launch_time_s(t) + time_s(t) for t in self.operations
        )
        self.collective_s = tuple(time_s(t) if t.collective else 0.0 for t in self.operations)
        self.delay_s = tuple(cost.collective_share * each_s for each_s in self.collective_s)
        self.launch_s = tuple(cost.launch_time_s(task) for task in self.operations)
        self.host_s = {task.index: cost.host_task_time_s(task) for task in graph.tasks if task.on_host}
        self.offload_s = tuple(cost.offload_time_s(block.size_bytes) for block in graph.blocks)
        self.prefetch_s = tuple(cost.prefetch_time_s(block.size_bytes) for block in graph.blocks)
        self.copy_delay_s = tuple(cost.copy_delay_s(block.size_bytes) for block in graph.blocks)
        self._writers = _writers(graph)
        updates = [task for task in graph.tasks if task.phase is Phase.UPDATE]
        # by block, the first task of the update that writes it
        self._updated = {block: task.index for task in reversed(updates) for block in task.writes}
        self.sent = {
            task: tuple(block for block in graph.tasks[task].reads if self._writers[block]) for task in self.host_s
        }
        sums = {block for blocks in self.sent.values() for block in blocks if graph.blocks[block].host_location}
        self.visitors = sums.union(*(graph.tasks[task].writes for task in self.host_s))
        backward = (task.index for task in reversed(graph.tasks) if task.phase is Phase.BACKWARD)
        self._end_of_backward = next(backward, -1)
        self.units = self._find_units(least_bytes)
        self.unit_of = {block: n for n, unit in enumerate(self.units) for block in unit.blocks}

    @cached_property
    def compute_s(self) -> float:
        """Seconds of all tasks of the graph, each once."""
        return sum(self.duration_s[: len(self.graph.tasks)])

    @cached_property
    def turn(self) -> int:
        """The first task of the backward pass."""
        phases = (task.index for task in self.graph.tasks if task.phase is Phase.BACKWARD)
        return next(phases, len(self.graph.tasks))

    def _find_units(self, least_bytes: int) -> tuple[Unit, ...]:
        graph = self.graph
        candidates = {
            block.index
            for block in graph.blocks
            if block.role not in EXTERNAL_ROLES | RESULT_ROLES
            and block.size_bytes >= least_bytes
            and self._writers[block.index]
            and self._writers[block.index][0] < self.turn
        }
        candidates |= self._find_visitors()
        read_backward = {b for task in graph.tasks[self.turn :] for b in task.reads}
        units = []
        for family in self._families(candidates):
            waits = {task.index for task in self._waits if not set(family).isdisjoint(task.reads)}
            makers = sorted(waits.union(index for block in family for index in self._writers[block]))
            if not all(self._can_repeat(index, family) for index in makers):
                makers = []
            reads = {b for index in makers for b in self.repeatable.again[index].reads}
            units.append(
                Unit(
                    blocks=tuple(family),
                    size_bytes=graph.size_bytes(family),
                    makers=tuple(makers),
                    inputs=tuple(sorted((reads & candidates) - set(family))),
                    remake_s=sum(self.duration_s[self.again[index]] for index in makers),
                    stored=not read_backward.isdisjoint(family),
                    gather_s=sum(self.collective_s[self.again[index]] for index in makers),
                )
            )
        return self._before_updates(units)

    def _before_updates(self, units: Sequence[Unit]) -> tuple[Unit, ...]:
        """Return the units, without makers that would run again after an update of a weight that they read.

        A unit is made again until its last use, and until that of each unit that is made of it.
        """
        needed: dict[int, int] = defaultdict(int)  # by block: the last task before which it may be made again
        found: dict[int, Unit] = {}
        order = sorted(range(len(units)), key=lambda n: max(units[n].makers, default=-1), reverse=True)
        for number in order:
            unit = units[number]
            last = max(max(self.graph.last_use[block], needed[block]) for block in unit.blocks)
            reads = (block for task in unit.makers for block in self.graph.tasks[task].reads)
            if any(self._updated.get(block, last) < last for block in reads):
                unit = replace(unit, makers=(), inputs=(), remake_s=0.0, gather_s=0.0)
            for block in unit.inputs:
                needed[block] = max(needed[block], last)
            found[number] = unit
        return tuple(found[number] for number in range(len(units)))

    def _find_visitors(self) -> set[int]:
        """Return the blocks whose home is in host memory, and the gradients that wait for an update of these."""
        used = (self.graph.blocks[block] for task in self.graph.tasks for block in self.touched[task.index])
        at_home = {block.index for block in used if block.host_location}
        updates = [task for task in self.graph.tasks if task.phase is Phase.UPDATE and not task.on_host]
        read = {b for task in updates if at_home.intersection(task.writes) for b in task.reads}
        return at_home | {b for b in read if self.graph.blocks[b].role is Role.APPLIED_GRADIENT}

    @cached_property
    def _gathering(self) -> tuple[Task, ...]:
        """The tasks of the forward pass that touch only gathered weights, their buffers and the caller's blocks."""
        roles = EXTERNAL_ROLES | {Role.GATHERED}
        blocks = self.graph.blocks
        return tuple(
            task
            for task in self.graph.tasks[: self.turn]
            if {blocks[block].role for block in self.touched[task.index]} <= roles and not task.on_host
        )

    @cached_property
    def _waits(self) -> tuple[Task, ...]:
        """Those of them that only wait for a collective."""
        return tuple(task for task in self._gathering if task.reads and not task.writes)

    def _families(self, candidates: Iterable[int]) -> list[list[int]]:
        """Return blocks in groups: those that one task writes are together, unless it runs again without one.

        So are gathered weights and the buffers that they pass through.
        """
        parent: dict[int, int] = {block: block for block in candidates}
        blocks = self.graph.blocks

        def root(block: int) -> int:
            while parent[block] != block:
                parent[block] = block = parent[parent[block]]
            return block

        for task in self.graph.tasks[: self.turn]:
            again = self.repeatable.again.get(task.index, task)
            written = [block for block in again.writes if block in parent]
            for block in written[1:]:
                parent[root(block)] = root(written[0])
        for task in self._gathering:
            passed = [b for b in task.writes + task.reads if b in parent and blocks[b].role is Role.GATHERED]
            for block in passed[1:]:
                parent[root(block)] = root(passed[0])
        groups: dict[int, list[int]] = defaultdict(list)
        for block in sorted(parent):
            groups[root(block)].append(block)
        return list(groups.values())

    def _can_repeat(self, index: int, family: Iterable[int]) -> bool:
        """Return whether a task gives the family's blocks again whenever what it reads is there.

        It must run a second time, write nothing that lives on but the family, and read contents that no task changes
        before the backward pass ends (but the update, see `_before_updates`). What it creates in addition is dropped
        again.
        """
        again, task = self.repeatable.again.get(index), self.graph.tasks[index]
        if again is None:
            return False
        family = set(family)
        if not family.intersection(task.writes) <= set(again.writes):
            return False
        if not set(again.writes) <= family | set(again.creates):
            return False
        others = [block for block in again.reads if block not in family]
        last_write = self.repeatable.last_write
        of_family = all(last_write[block] < self.turn for block in family)
        writes = (write for block in others for write in self._writers.get(block, ()))
        return of_family and not any(index < write <= self._end_of_backward for write in writes)


def _writers(graph: TaskGraph) -> dict[int, list[int]]:
    """Return the tasks before the update that write each block."""
    found = defaultdict[int, list[int]](list)
    for task in graph.tasks:
        for block in () if task.phase is Phase.UPDATE else task.writes:
            found[block].append(task.index)
    return found
