"""Groups of weights that a rank gathers together: those of one wrapped module, and of the root."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from membench.core.graph.call import values_in
from membench.core.graph.task_graph import AFTER_THE_LOSS, Block, Role, Task, TaskGraph


class WeightGroup:
    """The weights of one wrapped module, or of the root.

    Args:
        uses: see `tasks_by_block`.

    Attributes:
        weights: their blocks in the graph that is sharded.
        forward, backward: the first and the last task of each pass that uses one; None: no task does.
        ready: the last task that touches one of their gradients; None: they have none.
    """

    def __init__(
        self, graph: TaskGraph, uses: Mapping[int, Sequence[Task]], name: str, weights: Sequence[Block]
    ) -> None:
        self.name, self.weights = name, weights
        touching = [task for block in weights for task in uses.get(block.index, ())]
        self.forward, self.backward = (_span(touching, is_backward=each) for each in (False, True))
        gradients = dict(graph.gradients)
        self.gradients = {block.name: value for block in weights if (value := gradients.get(block.name)) is not None}
        made = {value.block for value in self.gradients.values()}
        self.ready = max((task.index for block in made for task in uses.get(block, ())), default=None)

    @property
    def size_bytes(self) -> int:
        return sum(block.size_bytes for block in self.weights)


def _span(tasks: Sequence[Task], *, is_backward: bool) -> tuple[int, int] | None:
    uses = [task.index for task in tasks if (task.phase in AFTER_THE_LOSS) is is_backward]
    return (min(uses), max(uses)) if uses else None


def tasks_by_block(graph: TaskGraph) -> Mapping[int, Sequence[Task]]:
    """Return each block's tasks, searched for once, as a deep network has a group for each layer."""
    uses = defaultdict[int, list[Task]](list)
    for task in graph.tasks:
        for block in {*task.reads, *task.writes}:
            uses[block].append(task)
    return uses


def common_name(names: Sequence[str]) -> str:
    """Return what names of weights begin with: the name of their module."""
    parts = [name.split(".")[:-1] for name in names]
    common = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return ".".join(common)


def weight_dtypes(graph: TaskGraph) -> dict[int, torch.dtype]:
    """Return the format in which tasks read each weight."""
    unknown = {block.index for block in graph.blocks if block.role is Role.WEIGHT}
    dtypes: dict[int, torch.dtype] = {}
    for task in graph.tasks:
        if task.call and not unknown.isdisjoint(task.reads):
            values = values_in((task.call.args, task.call.kwargs))
            dtypes |= {value.block: value.dtype for value in values if value.block in unknown}
            unknown -= dtypes.keys()
    return dtypes
