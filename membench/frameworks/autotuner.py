"""The workspace of frameworks that let cuDNN choose the fastest algorithm within a limit."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from membench.core.graph.task_graph import Task
from membench.cost.convolution import ConvolutionAlgorithm, algorithm_work


@dataclass(frozen=True)
class Autotuner:
    """Chooses an algorithm for each convolution and for each of its gradients separately.

    Attributes:
        limit_bytes: most workspace of one convolution.
        rates: fraction of one peak rate that each of the library's algorithms reaches; only the ratios matter.
    """

    limit_bytes: int
    rates: Mapping[str, float]

    def workspace_bytes(self, task: Task) -> int:
        """Return the workspace of a task's algorithm; 0 if it is not a convolution."""
        if task.convolution is None:
            return 0
        fastest, shortest = 0, inf
        for name, rate in self.rates.items():
            done = algorithm_work(ConvolutionAlgorithm(name), task.convolution, task.gradient_of)
            if done and done.workspace_bytes <= self.limit_bytes and done.operations / rate < shortest:
                fastest, shortest = done.workspace_bytes, done.operations / rate
        return fastest
