"""PyTorch: the captured graph is what it runs."""

from typing import ClassVar

from membench.efficiency import Efficiency
from membench.frameworks.base import Framework
from membench.task_graph import TaskGraph


class PyTorch(Framework):
    """Eager PyTorch.

    Args:
        efficiency: of its kernels.
    """

    name: ClassVar[str] = "pytorch"

    def __init__(self, efficiency: Efficiency) -> None:
        self.efficiency = efficiency

    def lower(self, graph: TaskGraph) -> TaskGraph:
        return graph
