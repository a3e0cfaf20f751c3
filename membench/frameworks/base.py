"""Framework: what a paper's software keeps in memory for a network, and how well it uses its device."""

from abc import ABC, abstractmethod
from typing import ClassVar

from membench.efficiency import Efficiency
from membench.task_graph import TaskGraph


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
        """Turn a captured training step into what this framework keeps and runs.

        Raises:
            UnsupportedModel: a layer that the framework has no counterpart of; names it.
        """
