"""The fewest parts with which every part of a task fits a limit.

while a part of some task does not fit:
    compute that task in more parts [by channels where its weights are the larger half, otherwise by rows],
    and also the tasks that make what it reads
    [where none of them allows more parts: raise the limit to what they need, and refuse the budget in the end]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil

from membench.core.errors import InfeasibleSchedule
from membench.core.graph.task_graph import Role, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.strategies.mmcnn.partition import Partitioner, Parts, most_parts, partition

_GROWTH = 1.25
"""Least growth of the number of parts: halo and weights of a part do not shrink with it."""
_COARSE_GROWTH = 4.0
"""Least growth once the budget is refused: only what does not fit in any number of parts counts then."""


def unsplittable_bytes(graph: TaskGraph) -> tuple[int, str]:
    """Return the most bytes of the caller's unsplittable blocks (all but weights) that a task reads, and its name."""
    return max(((_whole_bytes(graph, task), task.name) for task in graph.tasks), default=(0, ""))


def refine(graph: TaskGraph, cost: CostModel, parts: Mapping[int, Parts], budget_bytes: int) -> TaskGraph:
    """Return the annotated graph with tasks split further until all of them fit.

    Args:
        parts: to begin with, by the task's index.

    Raises:
        InfeasibleSchedule: a task does not fit in any number of parts; names the smallest sufficient budget.
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
    """The memory that a part of a task needs.

    Attributes:
        own_bytes: without what is on the device all the time.
        origin: index of the whole task.
        makers: indices of the tasks that make what it reads.
    """

    name: str
    origin: int
    makers: frozenset[int]
    weight_bytes: int
    own_bytes: int


class _Needs:
    """The memory that each part needs; only changed parts are computed again.

    Attributes:
        external_bytes: on the device all the time.
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
        """Return the parts that need more than a limit, in the order in which they run."""
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
    too_large: Sequence[_Part], parts: Mapping[int, Parts], most: Sequence[Parts], room_bytes: int, growth: float
) -> dict[int, Parts]:
    """Return more parts for the tasks that are too large and for those that made what they read.

    Args:
        room_bytes: for a part.
        growth: the least factor by which the number of parts grows.
    """
    finer: dict[int, Parts] = {}
    for part in too_large:
        own, allowed = parts[part.origin], most[part.origin]
        factor = max(growth, part.own_bytes / max(1, room_bytes))
        channels = own.channels
        if 2 * part.weight_bytes > part.own_bytes or own.rows == allowed.rows:
            channels = min(allowed.channels, ceil(own.channels * factor))
        if channels != own.channels:
            finer[part.origin] = replace(finer.get(part.origin, own), channels=channels)
            continue
        for other in part.makers | {part.origin}:
            rows = min(most[other].rows, ceil(parts[other].rows * factor))
            if rows > parts[other].rows:
                finer[other] = replace(parts[other], rows=rows)
    return finer


def _whole_bytes(graph: TaskGraph, task: Task) -> int:
    read = (graph.blocks[block] for block in task.reads)
    return sum(block.size_bytes for block in read if block.host_location and block.role is not Role.WEIGHT)
