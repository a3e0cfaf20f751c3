"""TensorFlow's allocation: blocks on demand from one pool, best fit with coalescing.

Layrub, Table 2 ("related layers", "best-fit with coalescing"). A block is allocated when it is computed and freed after
its last use; workspaces come from the pool as well. The allocator is that of TensorFlow's sources (`BFCAllocator`, see
`BestFitPool`): the pool never shrinks, and its whole extent counts, fragmentation included.

TensorFlow's growth is left out: it reserves the whole device, or regions that double in size, so the memory of a process
hardly depends on what a network needs. Not `eager`, whose allocator wastes nothing, and which computes both gradients of
a convolution in one call; TensorFlow has an operator for each.
"""

from membench.core.cost_model import CostModel
from membench.core.schedule import Schedule
from membench.core.task_graph import Mode, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import BestFitPool
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand


class BestFit(Strategy):
    """TensorFlow's allocation on demand from one best-fit pool with coalescing (Layrub, Table 2)."""

    name = "best_fit"
    modes = frozenset(Mode)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes, pool=BestFitPool())
        compute_on_demand(builder, graph.tasks)
        return builder.finish()
