"""Names of operators: of a capture's tasks, and of a run of plain PyTorch."""

from typing import Any

from membench.core.graph.task_graph import Phase, TaskGraph
from membench.core.libraries.torch_internals import TorchDispatchMode


def operators(graph: TaskGraph, phase: Phase | None = None) -> list[str]:
    """Return names of operators in order, without what a capture adds at the ends of a step."""
    return [
        task.call.operator.split(".")[1]
        for task in graph.tasks
        if task.call is not None and phase in (None, task.phase)
    ]


class Seen(TorchDispatchMode):
    """Names of the operators that make or write tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns):
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})
