"""Framework: what a paper's software keeps in memory for a network, and how well it uses its device."""

from abc import ABC, abstractmethod
from typing import ClassVar

from membench.core.efficiency import Efficiency
from membench.core.task_graph import TaskGraph


class Framework(ABC):
    """A lowering, and an efficiency.

    Args:
        efficiency: of its kernels, for the cost model.

    Attributes:
        name: how configurations and tables call it.
    """

    name: ClassVar[str]

    def __init__(self, efficiency: Efficiency) -> None:
        self.efficiency = efficiency

    @abstractmethod
    def lower(self, graph: TaskGraph) -> TaskGraph:
        """Turn a captured training step into what this framework keeps and runs.

        Raises:
            UnsupportedModel: a layer that the framework has no counterpart of; names it.
        """
