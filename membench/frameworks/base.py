"""Framework: what a paper's software keeps in memory for a network, and how well it uses its device."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from membench.task_graph import TaskGraph


@dataclass(frozen=True)
class Efficiency:
    """How much of a device's peak a framework's kernels reach.

    A task takes ``operations / (arithmetic * peak rate) + passes * moved bytes / peak bandwidth``, where convolutions
    and inner products have the first term, everything else the second.

    Attributes:
        arithmetic: fraction of the peak arithmetic rate that convolutions and inner products reach.
        memory_passes: how often a memory-bound layer moves its maps, in units of the ideal once.
        normalization_passes: the same for batch normalisation.
        launch_s: fixed time per task.
    """

    arithmetic: float
    memory_passes: float
    normalization_passes: float
    launch_s: float


class Framework(ABC):
    """A lowering, and an efficiency.

    Attributes:
        name: how configurations and tables call it.
        efficiency: for the cost model.
    """

    name: ClassVar[str]
    efficiency: Efficiency

    @abstractmethod
    def lower(self, graph: TaskGraph) -> TaskGraph:
        """Turn a captured graph into what this framework keeps and runs.

        Raises:
            UnsupportedModel: a layer that the framework has no counterpart for.
        """
