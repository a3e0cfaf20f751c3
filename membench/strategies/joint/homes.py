"""Where weights, gradients and optimizer states live: on the device, or on the host, which updates them.

    forward:   layer 1, layer 2, ... layer n            weights at home come for their uses
    backward:  layer n ... layer 2, layer 1             gradients of weights at home leave
    host:        update n ... update 2 ...

An update runs where its weights live. Those of the last layers have their home in host memory: their weights are needed
last in the forward pass, and their gradients are complete first, so that both the copies and the updates run beside the
device's tasks.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from membench.core.graph.task_graph import STATE_ROLES, Phase, Role, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.rewrites.rewrite import keep_on_host, update_on_host

SMALLEST_HOME = 1 / 256
"""Blocks smaller than this share of the largest one of them stay on the device."""


@dataclass(frozen=True)
class Residence:
    """An update on the device in place of one on the host: its weights and states are on the device throughout.

    Attributes:
        tasks: tasks of the update, on the host in the problem's graph.
        visitors: its weights and gradients, which then do not leave; they have gaps (`Gap.leaves`).
        states_bytes: size of the blocks that only these tasks use.
        device_s: seconds of the update on the device.
    """

    tasks: tuple[int, ...]
    visitors: frozenset[int]
    states_bytes: int
    device_s: float


@dataclass(frozen=True)
class Homes:
    """A graph with its updates on the device, and the same one with some of them on the host.

    Attributes:
        graph: annotated.
    """

    graph: TaskGraph
    cost: CostModel

    @cached_property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """The tasks of each update that may run on the host, those of the same weights together, in order.

        Weights that the device sends to other ranks behind their update are not planned on the host.
        """
        exchanges = (task for task in self.graph.tasks if task.phase is Phase.UPDATE and task.collective)
        sent = {block for task in exchanges for block in task.reads}
        part_of: dict[int, int] = {}  # by weight
        parts: dict[int, list[int]] = defaultdict(list)
        for task in self.graph.tasks:
            weights = [block for block in task.writes if self.graph.blocks[block].role is Role.WEIGHT]
            moves = task.phase is Phase.UPDATE and task.cpu_moved_bytes and sent.isdisjoint(weights)
            if weights and moves:
                part = min((part_of[block] for block in weights if block in part_of), default=task.index)
                part_of |= dict.fromkeys(weights, part)
                parts[part].append(task.index)
        moved = {part: self.graph.size_bytes(self._touched(tasks)) for part, tasks in parts.items()}
        least_bytes = max(moved.values(), default=0) * SMALLEST_HOME
        return tuple(tuple(parts[part]) for part, size_bytes in moved.items() if size_bytes >= least_bytes)

    def at(self, count: int) -> TaskGraph:
        """Return the graph with weights of the first ``count`` parts, and those never updated, at home on the host."""
        graph = self.graph
        updated = {block for task in graph.tasks if task.phase is Phase.UPDATE for block in task.writes}
        sizes = (block.size_bytes for block in graph.blocks if block.role in STATE_ROLES)
        least_bytes = int(max(sizes, default=0) * SMALLEST_HOME)
        roles = frozenset({Role.WEIGHT}) if updated else STATE_ROLES
        kept = keep_on_host(graph, roles, updated=not updated, least_bytes=least_bytes)
        return update_on_host(kept, {task for part in self.parts[:count] for task in part})

    @cached_property
    def residences(self) -> tuple[Residence, ...]:
        """The parts, each as it is on the device."""
        moved = self.at(len(self.parts))
        used = defaultdict[int, set[int]](set)  # by block: tasks that are not on the host
        for task in moved.tasks:
            for block in () if task.on_host else {*task.reads, *task.writes}:
                used[block].add(task.index)
        found = []
        for part in self.parts:
            tasks = [self.graph.tasks[index] for index in part]
            touched = self._touched(part)
            visitors = frozenset(block for block in touched if used[block])
            found.append(
                Residence(
                    part,
                    visitors,
                    self.graph.size_bytes(touched - visitors),
                    sum(self.cost.launch_time_s(task) + self.cost.task_time_s(task) for task in tasks),
                )
            )
        return tuple(found)

    def _touched(self, tasks: tuple[int, ...] | list[int]) -> set[int]:
        used = (self.graph.tasks[index] for index in tasks)
        return {block for task in used for block in (*task.reads, *task.writes)}
