"""PyTorch: the captured graph is what it runs."""

from typing import ClassVar

from membench.frameworks.base import Framework
from membench.task_graph import TaskGraph


class PyTorch(Framework):
    """Eager PyTorch."""

    name: ClassVar[str] = "pytorch"

    def lower(self, graph: TaskGraph) -> TaskGraph:
        return graph
