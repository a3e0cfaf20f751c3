"""Framework: the memory that a paper's software keeps for a network, and the efficiency of its kernels."""

from abc import ABC, abstractmethod
from typing import ClassVar

from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import Efficiency
from membench.planning.pool import allocated


class Framework(ABC):
    """A lowering of captured graphs, and an efficiency.

    Args:
        efficiency: efficiency of its kernels, for the cost model.

    Attributes:
        name: in configurations and tables.
    """

    name: ClassVar[str]

    def __init__(self, efficiency: Efficiency) -> None:
        self.efficiency = efficiency

    def captured_on(self, device: DeviceProfile) -> AnyGpu | None:
        """Return the GPU whose operators `lower` reads for a step on a device; None: it reads the CPU's."""
        return None

    @abstractmethod
    def lower(self, graph: TaskGraph) -> TaskGraph:
        """Return the tasks and blocks of this framework for a captured training step.

        Raises:
            UnsupportedModel: the framework has no counterpart of a layer; names it.
        """


def lost_to_rounding_bytes(graph: TaskGraph) -> int:
    """Return the device memory that is lost where each external block is an allocation of its own."""
    return sum(allocated(b.size_bytes) - b.size_bytes for b in graph.blocks if b.is_external)
