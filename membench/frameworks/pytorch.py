"""PyTorch: the captured graph is what it runs."""

from typing import ClassVar

from membench.frameworks.base import Efficiency, Framework
from membench.task_graph import TaskGraph


class PyTorch(Framework):
    name: ClassVar[str] = "pytorch"

    def __init__(self, efficiency: Efficiency) -> None:
        self.efficiency = efficiency

    def lower(self, graph: TaskGraph) -> TaskGraph:
        return graph
