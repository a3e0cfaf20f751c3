"""Groups of weights that a rank gathers together: those of one wrapped module, and of the root."""

from collections.abc import Sequence

from membench.core.task_graph import AFTER_THE_LOSS, Block, TaskGraph


class WeightGroup:
    """The weights of one wrapped module, or of the root.

    Attributes:
        weights: their blocks in the graph that is sharded.
        forward, backward: the first and the last task of each pass that uses one; None: no task does.
        ready: the last task that touches one of their gradients; None: they have none.
    """

    def __init__(self, graph: TaskGraph, name: str, weights: Sequence[Block]) -> None:
        self.name, self.weights = name, weights
        blocks = {block.index for block in weights}
        self.forward = _span(graph, blocks, is_backward=False)
        self.backward = _span(graph, blocks, is_backward=True)
        gradients = dict(graph.gradients)
        self.gradients = {
            block.name: value for block in weights if (value := gradients.get(block.name)) is not None
        }
        made = {value.block for value in self.gradients.values()}
        self.ready = max(
            (task.index for task in graph.tasks if not made.isdisjoint((*task.reads, *task.writes))),
            default=None,
        )

    @property
    def size_bytes(self) -> int:
        return sum(block.size_bytes for block in self.weights)


def _span(graph: TaskGraph, blocks: set[int], *, is_backward: bool) -> tuple[int, int] | None:
    uses = [
        task.index
        for task in graph.tasks
        if (task.phase in AFTER_THE_LOSS) is is_backward
        and not blocks.isdisjoint((*task.reads, *task.writes))
    ]
    return (uses[0], uses[-1]) if uses else None


def common_name(names: Sequence[str]) -> str:
    """Return what names of weights begin with: the name of their module."""
    parts = [name.split(".")[:-1] for name in names]
    common = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return ".".join(common)
