"""Which tasks `torch.compile` has in one graph: those of the modules that it was given, each on its own."""

from collections.abc import Collection

from membench.core.graph.task_graph import Phase, Task, TaskGraph
from membench.core.step.kernels import Compiled, is_inside

Region = tuple[str, str]
"""What is compiled together: a module's path, and that of the innermost module in it at whose edges a graph ends."""


class Regions:
    """The region of each task of a graph.

    Args:
        apart: paths of modules at whose edges a graph ends, as ``fully_shard`` has hooks there.
    """

    def __init__(self, graph: TaskGraph, compiled: Compiled, apart: Collection[str] = ()) -> None:
        losses = {task.layer for task in graph.tasks if task.phase is Phase.LOSS}
        of_loss = ("" if "" in compiled.modules else "loss", "") if compiled.loss else None
        self._of_layer = [
            of_loss if layer in losses else _region(name.split("#")[0], compiled, apart)
            for layer, name in enumerate(graph.layers)
        ]

    def of(self, task: Task) -> Region | None:
        """Return a task's region; None: it is not compiled."""
        return self._of_layer[task.layer] if task.layer >= 0 else None


def _region(layer: str, compiled: Compiled, apart: Collection[str]) -> Region | None:
    module = compiled.around(layer)
    if module is None:
        return None
    return module, max((path for path in apart if is_inside(layer, path)), key=len, default="")
