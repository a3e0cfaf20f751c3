"""PyTorch: it runs the captured graph itself."""

from typing import ClassVar

from membench.core.task_graph import TaskGraph
from membench.frameworks.base import Framework


class PyTorch(Framework):
    """Eager PyTorch."""

    name: ClassVar[str] = "pytorch"

    def lower(self, graph: TaskGraph) -> TaskGraph:
        return graph
