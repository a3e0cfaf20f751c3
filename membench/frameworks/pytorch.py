"""PyTorch: it runs the captured graph itself."""

from typing import ClassVar

import torch

from membench.capture.trace import ANY_GPU
from membench.core.task_graph import TaskGraph
from membench.frameworks.base import Framework


class PyTorch(Framework):
    """Eager PyTorch."""

    name: ClassVar[str] = "pytorch"
    captured_on: ClassVar[torch.device | None] = ANY_GPU

    def lower(self, graph: TaskGraph) -> TaskGraph:
        return graph
