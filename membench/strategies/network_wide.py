"""Caffe's allocation: activations and gradients of the whole network, for the whole run.

Layrub, Table 2 ("a whole network (d+g)"). Nothing is ever given back, so the peak is the sum of all blocks. It is
the baseline of Layrub's tables; not `eager`, where a block dies after its last use.
"""

from membench.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.schedule import Schedule
from membench.strategies.base import Strategy
from membench.strategies.streams import gradient_stream
from membench.task_graph import TaskGraph


class NetworkWide(Strategy):
    """Args:
    gradient_streams: run a convolution's weight gradient beside its data gradient (Layrub 4.3).
    """

    name = "network_wide"

    def __init__(self, gradient_streams: bool = False) -> None:
        self._gradient_streams = gradient_streams

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        for task in graph.tasks:
            builder.compute(task, stream=gradient_stream(task, separate=self._gradient_streams))
        return builder.finish()
