"""PyTorch eager: a block is allocated when it is computed and freed after its last use.

The reference for time and for gradients. Not `network_wide`, which never gives memory back.
"""

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Mode, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand


class Eager(Strategy):
    """PyTorch's own execution, the baseline: memory on demand, nothing offloaded, recomputed or compressed."""

    name = "eager"
    plans_for_budgets = False
    modes = frozenset(Mode)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = join_convolution_backward(graph, cost)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        compute_on_demand(builder, graph.tasks)
        return builder.finish()
