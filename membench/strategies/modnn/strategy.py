"""moDNN: memory optimal deep neural network training on GPUs (Chen et al., IEEE TPDS 2019), for any budget above a lower bound.

Before training, a simulation with a clock walks over the tasks (Algorithm 1) and decides what moves and when:

1. prepare: the task's inputs and outputs get addresses in one pool; where there is no room, the blocks leave whose copies
   delay the task least (Section 4.3). Where no contiguous room can be made, everything leaves and the inputs come back.
2. each convolution runs with the algorithm that gains the most, the delays that its workspace causes set off (Equation 10);
   room for a workspace is made in the same way.
3. what later tasks lack comes back as late as it may, but no later (Equation 9), unless that would be in vain.

A batch for which not even a window of tasks has room is computed in micro-batches (Equation 8). The schedule says the same as
the simulation: one stream of copies, and a task waits for the transfers that it depends on, for nothing else.

Weights and their gradients stay, unless `offload_weights` lets them visit the device like everything else, which the paper
analyses (its second lower bound) and has not built. Not vDNN, which decides layer by layer and cannot keep an arbitrary budget; not
SuperNeurons, which recomputes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import inf

import numpy as np

from membench.core.convolution import Algorithm
from membench.core.cost_model import CostModel
from membench.core.errors import InfeasibleSchedule
from membench.core.schedule import Schedule
from membench.core.task_graph import Role, Task, TaskGraph
from membench.planning.algorithms import Preference, prefer
from membench.planning.builder import ScheduleBuilder
from membench.planning.micro_batch import GraphAt, fitted_sizes
from membench.planning.pool import aligned
from membench.planning.rewrite import keep_on_host
from membench.strategies.base import Strategy
from membench.strategies.modnn.arena import Arena
from membench.strategies.modnn.clocked_memory import ClockedMemory, MayLeave, Move, Room


class Modnn(Strategy):
    """One GPU's schedule; the gradients of several are exchanged around it.

    Args:
        offload_weights: weights, and what the step updates for them, live on the host.
    """

    name = "modnn"

    def __init__(self, offload_weights: bool = False) -> None:
        self._offload_weights = offload_weights

    def micro_batch_sizes(
        self, graph_at: GraphAt, batch_size: int, cost: CostModel, budget_bytes: int | None
    ) -> Iterable[int]:
        return fitted_sizes(lambda size: self._placed(graph_at(size)), batch_size, cost, budget_bytes)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = self._placed(graph)
        simulation = _Simulation(prefer(graph, cost, Preference.MEMORY), cost, budget_bytes)
        decisions = list(simulation.run())
        tasks = tuple(decision.task for decision in decisions)
        builder = ScheduleBuilder(
            self.name,
            replace(graph, tasks=tasks),
            budget_bytes=budget_bytes,
            pool=Arena(simulation.capacity_bytes),
        )
        carry_out = {
            Move.OFFLOAD: builder.offload,
            Move.FREE: builder.free,
            Move.PREFETCH: builder.prefetch,
        }
        for decision in decisions:
            for move, block in decision.moves:
                carry_out[move](block)
            builder.compute(decision.task)
            builder.free_dead()
        for move, block in simulation.last_moves():
            carry_out[move](block)
        return builder.finish()

    def _placed(self, graph: TaskGraph) -> TaskGraph:
        return keep_on_host(graph, _OF_WEIGHTS, updated=True) if self._offload_weights else graph


_OF_WEIGHTS = frozenset({Role.WEIGHT, Role.ACCUMULATED, Role.OPTIMIZER_STATE})


@dataclass(frozen=True, slots=True)
class _Decision:
    """What happens before a task, and the task with its algorithm."""

    moves: tuple[tuple[Move, int], ...]
    task: Task


class _Simulation:
    """Algorithm 1."""

    def __init__(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> None:
        self.capacity_bytes = (
            None if budget_bytes is None else max(0, budget_bytes - graph.external_bytes - graph.result_bytes)
        )
        self._graph = graph
        self._cost = cost
        self._budget_bytes = budget_bytes
        self._in_pool = [block.is_transient for block in graph.blocks]
        self._memory = ClockedMemory(graph, cost, self.capacity_bytes)
        self._uses = self._find_uses()  # of each block, the last one first
        self._next_use = np.array([uses[-1] if uses else -1 for uses in self._uses])
        self._is_unused = np.zeros(len(graph.blocks), dtype=np.bool_)  # since it was produced or came back
        self._absent = [
            (self._uses[b.index][-1], b.index)
            for b in graph.blocks
            if b.host_location and self._uses[b.index]
        ]
        heapify(self._absent)  # (next use, block)
        self._leaving: list[int] = []  # being copied to the host, to be freed once they are there
        self._ways = [self._find_ways(task) for task in graph.tasks]
        times = (self._time_s(task, ways[0]) for task, ways in zip(graph.tasks, self._ways, strict=True))
        self._fastest_s = [0.0, *accumulate(times)]  # when each task would start, and the last one end
        self._in_vain = self._predict_defragmentation()

    def run(self) -> Iterator[_Decision]:
        for task in self._graph.tasks:
            self._free_what_has_left(task)
            self._prepare(task)
            way = self._choose_algorithm(task)
            self._prefetch_for_later(task, way)
            yield self._compute(task, way)

    def last_moves(self) -> tuple[tuple[Move, int], ...]:
        """Return what is left to do when all tasks have run."""
        return self._memory.take_moves()

    @property
    def end_s(self) -> float:
        """When the last task ends."""
        return self._memory.compute_s

    # ---- the steps of Algorithm 1 -------------------------------------------------------------------

    def _prepare(self, task: Task) -> None:
        """Let the task's inputs be resident and its outputs have room."""
        room = self._find_room(task, task.workspace_bytes)
        if room is None:
            raise self._below_lower_bound()
        self._make(room, task)

    def _choose_algorithm(self, task: Task) -> Algorithm:
        """Return the algorithm that gains the most over the smallest one (Equation 10); give its workspace room."""
        ways = self._ways[task.index]
        if len(ways) == 1:
            return ways[0]
        best, best_gain_s = None, 0.0
        start_s = self._memory.ready_s(self._inputs(task))
        smallest = min(ways, key=lambda way: way.workspace_bytes)
        for way in ways:
            room = self._find_room(task, way.workspace_bytes)
            if room is None:
                continue
            gain_s = smallest.time_s - way.time_s - max(0.0, room.at_s - start_s)
            gain_s -= self._prefetch_delay_s(task, way)
            if best is None or gain_s > best_gain_s:
                best, best_gain_s, best_room = way, gain_s, room
        assert best is not None, "the smallest algorithm has room since the task was prepared"
        self._make(best_room, task)
        return best

    def _prefetch_delay_s(self, task: Task, way: Algorithm) -> float:
        """Return by how much what comes back next is late if it has no room beside this algorithm's workspace."""
        if (later := self._next_lacking()) is None or later >= self._in_vain[task.index + 1]:
            return 0.0
        missing = self._missing(self._graph.tasks[later])
        late_s = self._lateness_s(task, way, later, missing)
        if late_s <= 0 or self._room_to_prefetch(task, way, later, missing) is not None:
            return 0.0
        return late_s

    def _prefetch_for_later(self, task: Task, way: Algorithm) -> None:
        """Start the copies that would be late if they started after this task (Equation 9)."""
        while (later := self._next_lacking()) is not None and later < self._in_vain[task.index + 1]:
            missing = self._missing(self._graph.tasks[later])
            if self._lateness_s(task, way, later, missing) <= 0:
                return
            leaving = self._room_to_prefetch(task, way, later, missing)
            if leaving is None:
                return
            start_s = self._memory.ready_s(self._inputs(task))
            copying = [block for block in leaving if self._memory.on_host_s(block) > start_s]
            if copying:  # comes back into their memory at a later task, so that this one need not wait
                self._start_to_leave(copying)
                return
            for block in leaving:
                self._evict(block)
            for block in missing:
                self._prefetch(block)

    def _compute(self, task: Task, way: Algorithm) -> _Decision:
        memory = self._memory
        moves = memory.take_moves()
        inputs, creates = self._inputs(task), self._pooled(task.creates)
        changes = [block for block in inputs if block in task.writes]
        memory.run(inputs, creates, changes, self._time_s(task, way))
        self._is_unused[inputs] = False
        self._is_unused[creates] = True
        for block in (*inputs, *creates):
            if self._uses[block] and self._uses[block][-1] == task.index:
                self._uses[block].pop()
            if self._uses[block]:
                self._next_use[block] = self._uses[block][-1]
                continue
            if self._graph.blocks[block].host_location and memory.on_host_s(block) == inf:
                memory.evict(block)
            else:
                memory.drop(block)
        return _Decision(moves, replace(task, algorithm=way.name, workspace_bytes=way.workspace_bytes))

    def _free_what_has_left(self, task: Task) -> None:
        """Free the blocks whose copies are done; one that is needed now has left in vain."""
        memory, still = self._memory, []
        for block in self._leaving:
            if not memory.is_resident(block) or self._uses[block][-1] == task.index:
                continue
            if memory.on_host_s(block) <= memory.compute_s:
                self._evict(block)
            else:
                still.append(block)
        self._leaving = still

    # ---- moves --------------------------------------------------------------------------------------

    def _make(self, room: Room, task: Task) -> None:
        """Let blocks leave for a task, and what it lacks come back."""
        for block in room.leaving:
            self._evict(block)
        for block in self._missing(task):
            self._prefetch(block)

    def _evict(self, block: int) -> None:
        self._memory.evict(block)
        self._is_unused[block] = False
        heappush(self._absent, (self._uses[block][-1], block))

    def _prefetch(self, block: int) -> None:
        self._memory.prefetch(block)
        self._is_unused[block] = True

    def _start_to_leave(self, blocks: list[int]) -> None:
        for block in blocks:
            if block not in self._leaving:
                self._memory.offload(block)
                self._leaving.append(block)

    # ---- what the decisions ask ---------------------------------------------------------------------

    def _may_leave(self, until: int) -> MayLeave:
        """Return which blocks may leave while nobody needs them before the task `until`, that one included (4.3)."""
        return lambda blocks: ~self._is_unused[blocks] & (self._next_use[blocks] > until)

    def _find_room(self, task: Task, workspace_bytes: int) -> Room | None:
        """Return what has to leave so that a task has room; all does where no contiguous room can be made (4.3).

        The paper leaves a workspace out of the second case. Without it, one small block that must stay and lies in the
        middle of an almost empty pool forbids the fastest algorithm.
        """
        memory, missing = self._memory, self._missing(task)
        wanted = memory.sizes(missing) + self._pending(task, workspace_bytes)
        room = memory.find_room(wanted, self._may_leave(task.index))
        if room is None and self._has_room_alone(task, workspace_bytes):
            room = memory.defragment(self._inputs(task))
        return room

    def _room_to_prefetch(
        self, task: Task, way: Algorithm, later: int, missing: list[int]
    ) -> tuple[int, ...] | None:
        """Return what has to leave so that a later task's inputs and this one both have room."""
        room = self._memory.find_room(
            self._memory.sizes(missing) + self._pending(task, way.workspace_bytes),
            self._may_leave(later),
        )
        return None if room is None else room.leaving

    def _lateness_s(self, task: Task, way: Algorithm, later: int, missing: list[int]) -> float:
        """Return by how much a task's inputs are late if their copies start after this task (Equation 9).

        The paper leaves out what the stream of copies still has to do.
        """
        memory = self._memory
        end_s = memory.ready_s(self._inputs(task)) + self._time_s(task, way)
        expected_s = end_s + self._fastest_s[later] - self._fastest_s[task.index + 1]
        return max(end_s, memory.copy_s) + memory.prefetch_time_s(missing) - expected_s

    def _next_lacking(self) -> int | None:
        """Return the nearest task that lacks an input."""
        while self._absent:
            use, block = self._absent[0]
            if not self._memory.is_resident(block) and self._uses[block] and self._uses[block][-1] == use:
                return use
            heappop(self._absent)
        return None

    def _missing(self, task: Task) -> list[int]:
        """Return the inputs that have left; what will be made before the task is not missing."""
        memory = self._memory
        left = (block for block in self._inputs(task) if not memory.is_resident(block))
        return [block for block in left if memory.on_host_s(block) < inf]

    def _inputs(self, task: Task) -> list[int]:
        """Return the blocks that must be resident: what the task reads, and what it writes without creating it."""
        touched = dict.fromkeys((*task.reads, *task.writes))
        return [block for block in self._pooled(touched) if block not in task.creates]

    def _pooled(self, blocks: Iterable[int]) -> list[int]:
        return [block for block in blocks if self._in_pool[block]]

    def _pending(self, task: Task, workspace_bytes: int) -> list[int]:
        """Return the sizes that a task takes when it runs, in that order."""
        return [*self._memory.sizes(self._pooled(task.creates)), workspace_bytes]

    def _find_ways(self, task: Task) -> tuple[Algorithm, ...]:
        if task.convolution is None:
            return (Algorithm(task.algorithm, task.workspace_bytes, self._cost.task_time_s(task)),)
        return self._cost.algorithms(task)

    def _time_s(self, task: Task, way: Algorithm) -> float:
        return self._cost.launch_time_s(task) + way.time_s

    # ---- what is known before -----------------------------------------------------------------------

    def _find_uses(self) -> list[list[int]]:
        uses: list[list[int]] = [[] for _ in self._graph.blocks]
        for task in reversed(self._graph.tasks):
            for block in {*task.reads, *task.writes}:
                uses[block].append(task.index)
        return uses

    def _predict_defragmentation(self) -> list[int]:
        """Return for each task the next one, itself included, for which prefetching would be in vain (4.4).

        Everything that may leave is taken to have left and every prefetch to have happened: what remains besides the
        task's own blocks are those that were produced and not used yet. If even then there is no room, all will have to
        leave. Contiguity is ignored.
        """
        tasks = self._graph.tasks
        locked_bytes = [0] * (len(tasks) + 1)  # as changes from task to task
        for block, uses in enumerate(self._uses):
            if self._in_pool[block] and len(uses) > 1 and not self._graph.blocks[block].host_location:
                locked_bytes[uses[-1] + 1] += aligned(self._graph.blocks[block].size_bytes)
                locked_bytes[uses[-2]] -= aligned(self._graph.blocks[block].size_bytes)
        locked_bytes = list(accumulate(locked_bytes))
        following = [len(tasks)] * (len(tasks) + 1)
        for task in reversed(tasks):
            needed_bytes = locked_bytes[task.index] + self._needed_bytes(task, task.workspace_bytes)
            is_full = self.capacity_bytes is not None and needed_bytes > self.capacity_bytes
            following[task.index] = task.index if is_full else following[task.index + 1]
        return following

    def _needed_bytes(self, task: Task, workspace_bytes: int) -> int:
        blocks = (*self._inputs(task), *self._pooled(task.creates))
        return sum(map(aligned, (*self._memory.sizes(blocks), workspace_bytes)))

    def _has_room_alone(self, task: Task, workspace_bytes: int) -> bool:
        """Return whether a task has room in an empty pool."""
        return self.capacity_bytes is None or self._needed_bytes(task, workspace_bytes) <= self.capacity_bytes

    def _below_lower_bound(self) -> InfeasibleSchedule:
        """Return the refusal of a budget below Equation 7; names the neediest task."""
        assert self._budget_bytes is not None
        stays_bytes = self._graph.external_bytes + self._graph.result_bytes
        needed_bytes, task = max(
            (self._needed_bytes(task, task.workspace_bytes), task.name) for task in self._graph.tasks
        )
        return InfeasibleSchedule(
            task=task,
            needed_bytes=stays_bytes + needed_bytes,
            budget_bytes=self._budget_bytes,
            lower_bound_bytes=self._graph.lower_bound_bytes,
        )
