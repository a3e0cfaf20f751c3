"""TensorFlow's allocation: blocks on demand from one pool, best fit with coalescing.

Layrub, Table 2 ("related layers", "best-fit with coalescing"). A block is allocated when it is computed and freed after
its last use; workspaces come from the pool as well. The allocator is that of TensorFlow's sources (`BFCAllocator`, see
`BestFitPool`): the pool never shrinks, and its whole extent counts, fragmentation included.

TensorFlow takes the whole device, or regions that double in size (`regions_double_on`), which is what ``nvidia-smi``
shows of a process. Not `eager`, whose allocator wastes nothing, and which computes both gradients of a convolution in
one call; TensorFlow has an operator for each.
"""

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Mode, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.units import parse_bytes
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import BestFitPool
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand


class BestFit(Strategy):
    """TensorFlow's allocation on demand from one best-fit pool with coalescing (Layrub, Table 2).

    Args:
        regions_double_on: memory of a device, "12 GB"; the pool grows by regions that double in size, as long as the
            device has room in addition to the weights. None: it grows by what it lacks.

    Raises:
        MembenchError: that is not a size.
    """

    name = "best_fit"
    plans_for_budgets = False
    modes = frozenset(Mode)

    def __init__(self, regions_double_on: str | int | None = None) -> None:
        self._device_bytes = 0 if regions_double_on is None else parse_bytes(regions_double_on)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        pool = BestFitPool(doubles_up_to_bytes=max(0, self._device_bytes - graph.external_bytes))
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes, pool=pool)
        compute_on_demand(builder, graph.tasks)
        return builder.finish()
