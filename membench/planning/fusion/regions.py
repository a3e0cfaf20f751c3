"""Which tasks `torch.compile` has in one graph: those of the modules that it was given, each on its own."""

from collections.abc import Collection, Sequence

from membench.core.kernels import Compiled
from membench.core.task_graph import Phase, Task, TaskGraph

Region = tuple[str, str]
"""What was compiled together: a module's path, and that of the innermost module in it at whose edges a graph ends."""

_LOSS: Region = ("loss", "loss")


class Regions:
    """The region of each task of a graph.

    Args:
        compiled: None: the whole step, in one region.
        apart: paths of modules at whose edges a graph ends, as ``fully_shard`` has hooks there.
    """

    def __init__(self, graph: TaskGraph, compiled: Compiled | None = None, apart: Collection[str] = ()) -> None:
        losses = {task.layer for task in graph.tasks if task.phase is Phase.LOSS}
        self._of_layer = [
            _loss_region(compiled) if layer in losses else _region(name.split("#")[0], compiled, apart)
            for layer, name in enumerate(graph.layers)
        ]
        self._elsewhere = ("", "") if compiled is None else None

    def of(self, task: Task) -> Region | None:
        """Return a task's region; None: it is not compiled."""
        return self._of_layer[task.layer] if task.layer >= 0 else self._elsewhere


def _loss_region(compiled: Compiled | None) -> Region | None:
    if compiled is None:
        return ("", "")
    return _LOSS if compiled.loss else None


def _region(layer: str, compiled: Compiled | None, apart: Collection[str]) -> Region | None:
    around = [path for path in (("",) if compiled is None else compiled.modules) if _is_in(layer, path)]
    if not around:
        return None
    return min(around, key=len), max(_around(layer, apart), key=len, default="")


def _around(layer: str, paths: Collection[str]) -> Sequence[str]:
    return [path for path in paths if _is_in(layer, path)]


def _is_in(layer: str, path: str) -> bool:
    return not path or layer == path or layer.startswith(f"{path}.")
