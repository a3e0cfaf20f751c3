"""moDNN: memory optimal training on GPUs (Chen et al., IEEE TPDS 2019), for any budget above a bound.

Before training, a simulation with a clock walks over the tasks (Algorithm 1) and decides what is copied and when:

1. prepare: the task's inputs and outputs get addresses in one pool; where there is no room, those blocks are evicted
   whose copies delay the task least (Section 5.2.1). Where no contiguous room can be made, everything is evicted and
   the inputs are prefetched again.
2. each convolution runs with the algorithm that gains the most after the delays that its workspace causes (Equation
   10); room for a workspace is made in the same way.
3. inputs of later tasks are prefetched as late as possible (Equation 9), unless they would be evicted again before
   their use.

A step that has room as it is, with the fastest algorithms, needs no plan: nothing is copied, and memory is held on
demand. In one pool it would hold more, its gaps.

A batch for which not even a window of tasks has room is computed in micro-batches (Equation 8). The schedule does what
the simulation did: one copy stream, and a task waits only for the transfers that it depends on. The plan counts the
fragmentation of one pool; backends allocate from their own pools, so the planned addresses are not realised.

Inputs and labels are the caller's and stay on the device, unless `load_inputs` copies those of each micro-batch from
the host, as the paper's framework does: its Algorithm 1 loads whatever a task needs. Weights and their gradients stay
there too, unless `offload_weights` treats them like other blocks, which the paper analyses (its second lower bound) and
has not built. Not vDNN, which decides layer by layer and cannot keep an arbitrary budget; not SuperNeurons, which
recomputes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from membench.core.errors import InfeasibleSchedule
from membench.core.graph.convolution import Algorithm
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import ARGUMENT_ROLES, STATE_ROLES, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.algorithms import Preference, prefer
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.micro_batch import GraphAt, fitted_sizes
from membench.planning.rewrites.rewrite import keep_on_host
from membench.strategies.base import Strategy
from membench.strategies.modnn.arena import Arena
from membench.strategies.modnn.clocked_memory import ClockedMemory, Move, Room
from membench.strategies.modnn.needs import PoolNeeds
from membench.strategies.modnn.uses import RemainingUses
from membench.strategies.on_demand import compute_on_demand


class Modnn(Strategy):
    """moDNN: planned offloads, prefetches and micro-batches within a budget (Chen et al. 2019, Sections 3 to 5).

    The schedule of one GPU; the gradients of several are exchanged around it.

    Args:
        offload_weights: weights, and what the step updates for them, are kept on the host.
        load_inputs: inputs and labels are kept on the host; each micro-batch copies its own to the device.
    """

    name = "modnn"

    def __init__(self, offload_weights: bool = False, load_inputs: bool = False) -> None:
        self._offload_weights = self.moves_weights = offload_weights
        self._load_inputs = load_inputs

    def micro_batch_sizes(
        self, graph_at: GraphAt, batch_size: int, cost: CostModel, budget_bytes: int | None
    ) -> Iterable[int]:
        """Yield the sizes of Equation 8, then the whole batch: accumulators may need more than micro-batches save."""
        yield from fitted_sizes(lambda size: self._with_host_blocks(graph_at(size)), batch_size, cost, budget_bytes)
        yield batch_size

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = self._with_host_blocks(graph)
        refusals = []
        for plan in (self._planned,) if self._offload_weights else (self._on_demand, self._planned):
            try:
                return plan(graph, cost, budget_bytes)
            except InfeasibleSchedule as refusal:
                refusals.append(refusal)
        raise min(refusals, key=lambda refusal: refusal.needed_bytes)

    def _on_demand(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        """Return the step with the fastest algorithms, which needs no pool, and no copies but those of its inputs."""
        builder = ScheduleBuilder(self.name, prefer(graph, cost, Preference.PERFORMANCE), budget_bytes=budget_bytes)
        builder.prefetch_offloaded(block.index for block in graph.blocks if not builder.is_dead(block.index))
        compute_on_demand(builder, builder.graph.tasks)
        return builder.finish()

    def _planned(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        """Return what Algorithm 1 decides."""
        simulation = _Simulation(prefer(graph, cost, Preference.MEMORY), cost, budget_bytes)
        decisions = list(simulation.run())
        builder = ScheduleBuilder(
            self.name,
            replace(graph, tasks=tuple(decision.task for decision in decisions)),
            budget_bytes=budget_bytes,
            pool=Arena(simulation.capacity_bytes),
        )
        carry_out = {Move.OFFLOAD: builder.offload, Move.FREE: builder.free, Move.PREFETCH: builder.prefetch}
        for decision in decisions:
            for move, block in decision.moves:
                carry_out[move](block)
            builder.compute(decision.task)
            builder.free_dead()
        for move, block in simulation.last_moves():
            carry_out[move](block)
        return builder.finish()

    def _with_host_blocks(self, graph: TaskGraph) -> TaskGraph:
        """Return the graph with the blocks that the options name in host memory."""
        if self._load_inputs:
            graph = keep_on_host(graph, ARGUMENT_ROLES)
        return keep_on_host(graph, STATE_ROLES, updated=True) if self._offload_weights else graph


@dataclass(frozen=True, slots=True)
class _Decision:
    """The moves before a task, and the task with its algorithm."""

    moves: tuple[tuple[Move, int], ...]
    task: Task


class _Simulation:
    """Algorithm 1."""

    def __init__(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> None:
        self._graph = graph
        self._cost = cost
        self._needs = PoolNeeds(graph, budget_bytes)
        self.capacity_bytes = self._needs.capacity_bytes
        self._memory = ClockedMemory(graph, cost, self.capacity_bytes)
        self._uses = RemainingUses(graph)
        self._offloading: list[int] = []  # being copied to the host, to be freed once that is done
        self._algorithms = [self._find_algorithms(task) for task in graph.tasks]
        times = (self._time_s(task, self._algorithms[task.index][0]) for task in graph.tasks)
        self._fastest_s = [0.0, *accumulate(times)]  # when each task would start, and the last one end

    def run(self) -> Iterator[_Decision]:
        for task in self._graph.tasks:
            self._free_offloaded(task)
            room = self._find_room(task, task.workspace_bytes)
            if room is None:
                raise self._needs.refusal()
            self._make(room, task)
            algorithm = self._choose_algorithm(task)
            self._prefetch_for_later(task, algorithm)
            yield self._compute(task, algorithm)

    def last_moves(self) -> tuple[tuple[Move, int], ...]:
        """Return the moves after the last task."""
        return self._memory.take_moves()

    @property
    def end_s(self) -> float:
        """When the last task ends."""
        return self._memory.compute_s

    # ---- the steps of Algorithm 1 -------------------------------------------------------------------

    def _choose_algorithm(self, task: Task) -> Algorithm:
        """Return the algorithm that gains the most over the smallest one (Equation 10), having made room for it."""
        algorithms = self._algorithms[task.index]
        if len(algorithms) == 1:
            return algorithms[0]
        start_s = self._memory.ready_s(self._needs.inputs(task))
        smallest = min(algorithms, key=lambda algorithm: algorithm.workspace_bytes)
        rooms: dict[Algorithm, Room] = {}
        gains_s: dict[Algorithm, float] = {}
        for algorithm in algorithms:
            room = self._find_room(task, algorithm.workspace_bytes)
            if room is None:
                continue
            rooms[algorithm] = room
            delay_s = max(0.0, room.at_s - start_s)
            gain_s = smallest.time_s - algorithm.time_s - delay_s
            gains_s[algorithm] = gain_s - self._prefetch_delay_s(task, algorithm)
        best = max(gains_s, key=gains_s.__getitem__)  # the smallest has had room since the task was prepared
        self._make(rooms[best], task)
        return best

    def _prefetch_delay_s(self, task: Task, algorithm: Algorithm) -> float:
        """Return the delay of the next prefetch if it has no room in addition to this algorithm's workspace."""
        later = self._next_to_prefetch(task)
        if later is None:
            return 0.0
        late_s = self._lateness_s(task, algorithm, later)
        if late_s <= 0 or self._room_to_prefetch(task, algorithm, later) is not None:
            return 0.0
        return late_s

    def _prefetch_for_later(self, task: Task, algorithm: Algorithm) -> None:
        """Start the copies that would be late if they started after this task (Equation 9)."""
        while (later := self._next_to_prefetch(task)) is not None:
            if self._lateness_s(task, algorithm, later) <= 0:
                return
            evicted = self._room_to_prefetch(task, algorithm, later)
            if evicted is None:
                return
            start_s = self._memory.ready_s(self._needs.inputs(task))
            copying = [block for block in evicted if self._memory.on_host_s(block) > start_s]
            if copying:  # prefetch into their memory at a later task, so that this one need not wait
                self._start_offloads(copying)
                return
            for block in evicted:
                self._evict(block)
            for block in self._missing(later):
                self._prefetch(block)

    def _compute(self, task: Task, algorithm: Algorithm) -> _Decision:
        memory = self._memory
        moves = memory.take_moves()
        inputs, creates = self._needs.inputs(task), self._needs.outputs(task)
        changes = [block for block in inputs if block in task.writes]
        memory.run(inputs, creates, changes, self._time_s(task, algorithm))
        for block in (*inputs, *creates):
            if self._uses.done(block, created=block in creates):
                if self._graph.blocks[block].host_location and memory.on_host_s(block) == inf:
                    memory.evict(block)
                else:
                    memory.drop(block)
        chosen = replace(task, algorithm=algorithm.name, workspace_bytes=algorithm.workspace_bytes)
        return _Decision(moves, chosen)

    # ---- moves --------------------------------------------------------------------------------------

    def _make(self, room: Room, task: Task) -> None:
        """Evict blocks for a task, and prefetch the inputs that it lacks."""
        for block in room.evicted:
            self._evict(block)
        for block in self._missing(task):
            self._prefetch(block)

    def _evict(self, block: int) -> None:
        self._memory.evict(block)
        self._uses.evicted(block)

    def _prefetch(self, block: int) -> None:
        self._memory.prefetch(block)
        self._uses.prefetched(block)

    def _start_offloads(self, blocks: list[int]) -> None:
        for block in blocks:
            if block not in self._offloading:
                self._memory.offload(block)
                self._offloading.append(block)

    def _free_offloaded(self, task: Task) -> None:
        """Free the blocks whose copies are done, except those that the task needs."""
        memory, still = self._memory, []
        for block in self._offloading:
            if not memory.is_resident(block) or self._uses.next(block) == task.index:
                continue
            if memory.on_host_s(block) <= memory.compute_s:
                self._evict(block)
            else:
                still.append(block)
        self._offloading = still

    # ---- room and time ------------------------------------------------------------------------------

    def _find_room(self, task: Task, workspace_bytes: int) -> Room | None:
        """Return the blocks to evict so that a task has room; all of them where no contiguous room can be made (5.2.1).

        The paper leaves a workspace out of the second case. Without it, one small block that must stay and lies in the
        middle of an almost empty pool forbids the fastest algorithm.
        """
        wanted = self._memory.sizes(self._missing(task)) + self._needs.pending(task, workspace_bytes)
        room = self._memory.find_room(wanted, self._uses.may_evict(task.index))
        if room is None and self._needs.fits_alone(task, workspace_bytes):
            room = self._memory.defragment(self._needs.inputs(task))
        return room

    def _room_to_prefetch(self, task: Task, algorithm: Algorithm, later: Task) -> tuple[int, ...] | None:
        """Return the blocks to evict so that a later task's inputs and this one both have room."""
        missing = self._memory.sizes(self._missing(later))
        pending = self._needs.pending(task, algorithm.workspace_bytes)
        room = self._memory.find_room(missing + pending, self._uses.may_evict(later.index))
        return None if room is None else room.evicted

    def _lateness_s(self, task: Task, algorithm: Algorithm, later: Task) -> float:
        """Return the delay of a later task's inputs if their copies start after this task (Equation 9).

        The paper leaves out the copies that are still to be done.
        """
        memory = self._memory
        end_s = memory.ready_s(self._needs.inputs(task)) + self._time_s(task, algorithm)
        expected_s = end_s + self._fastest_s[later.index] - self._fastest_s[task.index + 1]
        return max(end_s, memory.copy_s) + memory.prefetch_time_s(self._missing(later)) - expected_s

    def _next_to_prefetch(self, task: Task) -> Task | None:
        """Return the nearest task that lacks an input, unless everything has to be evicted up to then (5.2.2)."""
        later = self._uses.next_lacking()
        if later is None or later >= self._needs.next_defragmentation[task.index + 1]:
            return None
        return self._graph.tasks[later]

    def _missing(self, task: Task) -> list[int]:
        """Return the inputs that have been offloaded; those that are yet to be created are not missing."""
        memory = self._memory
        absent = (block for block in self._needs.inputs(task) if not memory.is_resident(block))
        return [block for block in absent if memory.on_host_s(block) < inf]

    def _find_algorithms(self, task: Task) -> tuple[Algorithm, ...]:
        if task.convolution is None:
            return (Algorithm(task.algorithm, task.workspace_bytes, self._cost.task_time_s(task)),)
        return self._cost.algorithms(task)

    def _time_s(self, task: Task, algorithm: Algorithm) -> float:
        return self._cost.launch_time_s(task) + algorithm.time_s
