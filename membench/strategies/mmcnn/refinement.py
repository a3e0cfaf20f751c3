"""Parts fine enough that each of them fits a limit, as few as it takes.

while a part of some task does not fit:
    that task is computed in more parts [by channels where its weights are what is large, else by rows],
    and so are those that make what it reads
    [where they are in as many parts as there are: the limit is what they need, and will be refused]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil

from membench.core.cost_model import CostModel
from membench.core.errors import InfeasibleSchedule
from membench.core.task_graph import Role, Task, TaskGraph
from membench.strategies.mmcnn.partition import Partitioner, Parts, most_parts, partition

_GROWTH = 1.25
"""More parts, at least, for what does not fit: what a part holds of its halo and its weights does not shrink with it."""
_COARSE_GROWTH = 4.0
"""Likewise once the budget is refused: only what does not fit in any parts counts then."""


def unsplittable_bytes(graph: TaskGraph) -> tuple[int, str]:
    """Return the most that a task reads of the caller's that lies in no parts (all but weights), and the task's name."""
    return max(((_whole_bytes(graph, task), task.name) for task in graph.tasks), default=(0, ""))


def refine(graph: TaskGraph, cost: CostModel, parts: Mapping[int, Parts], budget_bytes: int) -> TaskGraph:
    """Split further what does not fit, until every task does.

    Args:
        parts: to begin with, by the task's index.

    Raises:
        InfeasibleSchedule: something does not fit in any parts; names the smallest budget for which all does.
    """
    most = most_parts(graph)
    needs = _Needs(graph, cost)
    limit_bytes, stuck = max((budget_bytes, ""), unsplittable_bytes(graph))
    parts = dict(parts)
    needs.update(parts)
    while too_large := needs.beyond(limit_bytes):
        growth = _COARSE_GROWTH if stuck else _GROWTH
        finer = _finer(too_large, parts, most, limit_bytes - needs.external_bytes, growth)
        if finer:
            parts |= finer
            needs.update(parts)
        else:
            worst = max(too_large, key=lambda part: part.own_bytes)
            limit_bytes, stuck = worst.own_bytes + needs.external_bytes, worst.name
    if stuck:
        raise InfeasibleSchedule(
            task=stuck, needed_bytes=limit_bytes, budget_bytes=budget_bytes, lower_bound_bytes=limit_bytes
        )
    return cost.annotate(partition(graph, parts))


@dataclass(frozen=True, slots=True)
class _Part:
    """What a part of a task needs.

    Attributes:
        own_bytes: beside what is on the device all the time.
        origin: index of the task that it is a part of.
        makers: those of the tasks that make what it reads.
    """

    name: str
    origin: int
    makers: frozenset[int]
    weight_bytes: int
    own_bytes: int


class _Needs:
    """What each part needs; only parts that have changed are looked at again.

    Attributes:
        external_bytes: what is on the device all the time.
    """

    def __init__(self, graph: TaskGraph, cost: CostModel) -> None:
        self.external_bytes = 0
        self._cost = cost
        self._partitioner = Partitioner(graph)
        self._pieces: list[tuple[Task, ...]] = [()] * len(graph.tasks)
        self._parts: list[list[_Part]] = [[] for _ in graph.tasks]
        self._largest_bytes = [0] * len(graph.tasks)
        self._maker: dict[int, int] = {}  # of a block, by the index of the whole task

    def update(self, parts: Mapping[int, Parts]) -> None:
        pieces = self._partitioner.pieces(parts)
        changed = [i for i, piece in enumerate(pieces) if piece is not self._pieces[i]]
        self._pieces = pieces
        graph = self._cost.annotate(self._partitioner.graph_of(chain(*(pieces[i] for i in changed))))
        self.external_bytes = max(self.external_bytes, graph.external_bytes)
        tasks = iter(graph.tasks)
        for origin in changed:
            of_origin = [next(tasks) for _ in pieces[origin]]
            self._maker.update((block, origin) for task in of_origin for block in task.creates)
            self._parts[origin] = [self._part(graph, task, origin) for task in of_origin]
            self._largest_bytes[origin] = max(part.own_bytes for part in self._parts[origin])

    def beyond(self, limit_bytes: int) -> list[_Part]:
        """Return the parts that need more, in the order in which they run."""
        room_bytes = limit_bytes - self.external_bytes
        too_large = (i for i, size in enumerate(self._largest_bytes) if size > room_bytes)
        return [part for i in too_large for part in self._parts[i] if part.own_bytes > room_bytes]

    def _part(self, graph: TaskGraph, task: Task, origin: int) -> _Part:
        read = [graph.blocks[block] for block in task.reads]
        return _Part(
            task.name,
            origin,
            frozenset(self._maker[block] for block in task.reads if block in self._maker),
            sum(block.size_bytes for block in read if block.role is Role.WEIGHT),
            graph.needed_bytes[task.index] - graph.external_bytes,
        )


def _finer(
    too_large: Sequence[_Part],
    parts: Mapping[int, Parts],
    most: Sequence[Parts],
    room_bytes: int,
    growth: float,
) -> dict[int, Parts]:
    """Return more parts for the tasks that are too large and for those that made what they read.

    Args:
        room_bytes: for a part.
        growth: how many times as many parts, at least.
    """
    finer: dict[int, Parts] = {}
    for part in too_large:
        own, allowed = parts[part.origin], most[part.origin]
        by_channels = 2 * part.weight_bytes > part.own_bytes or own.rows == allowed.rows
        factor = max(growth, part.own_bytes / max(1, room_bytes))
        more_channels = own
        if by_channels:
            more_channels = replace(own, channels=min(allowed.channels, ceil(own.channels * factor)))
        for other in part.makers | {part.origin}:
            rows = min(most[other].rows, ceil(parts[other].rows * factor))
            if rows > parts[other].rows and more_channels == own:
                finer[other] = replace(parts[other], rows=rows)
        if more_channels != own:
            before = finer.get(part.origin, own)
            finer[part.origin] = replace(before, channels=more_channels.channels)
    return finer


def _whole_bytes(graph: TaskGraph, task: Task) -> int:
    read = (graph.blocks[block] for block in task.reads)
    return sum(block.size_bytes for block in read if block.host_location and block.role is not Role.WEIGHT)
