"""PyTorch: it runs the captured graph itself."""

from typing import ClassVar

import torch

from membench.capture.trace import ANY_GPU
from membench.core.efficiency import Efficiency
from membench.core.task_graph import TaskGraph
from membench.frameworks.base import Framework
from membench.planning.device_memory import AllocatorSettings


class PyTorch(Framework):
    """Eager PyTorch.

    Args:
        efficiency: of its kernels, for the cost model.
        allocator: settings of its caching allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``; see `AllocatorSettings.parse`.

    Raises:
        MembenchError: a setting of the allocator is not simulated.
    """

    name: ClassVar[str] = "pytorch"
    captured_on: ClassVar[torch.device | None] = ANY_GPU

    def __init__(self, efficiency: Efficiency, allocator: str = "") -> None:
        super().__init__(efficiency)
        self.allocator = AllocatorSettings.parse(allocator)

    def lower(self, graph: TaskGraph) -> TaskGraph:
        return graph
