"""Memory on demand: each block is held from its first use to its last."""

from collections.abc import Iterable

from membench.core.graph.task_graph import RESULT_ROLES, Task
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import Pool
from membench.planning.rewrites.recompute import Order


def compute_on_demand(builder: ScheduleBuilder, tasks: Iterable[Task]) -> None:
    """Run tasks in their order, and free dead blocks after each."""
    for task in tasks:
        builder.compute(task)
        builder.free_dead()


def on_demand_peak_bytes(order: Order, pool: Pool) -> int:
    """Return the peak of an order of tasks on demand, without the caller's blocks and the framework's overhead.

    It is the peak of the schedule that `compute_on_demand` would build, for a planner that compares many orders.

    Args:
        pool: an empty one, which serves everything but the results of the step.
    """
    last_use = {
        item.copies.get(block, block): position
        for position, item in enumerate(order.tasks)
        for block in (*item.task.reads, *item.task.writes)
    }
    dying: list[list[int]] = [[] for _ in order.tasks]
    for block, position in last_use.items():
        dying[position].append(block)
    addresses: dict[int, int] = {}
    results_bytes = peak_bytes = 0
    for item, last_used in zip(order.tasks, dying, strict=True):
        for created in item.task.creates:
            block = item.copies.get(created, created)
            if order.blocks[block].role in RESULT_ROLES:
                results_bytes += order.blocks[block].size_bytes
            else:
                addresses[block] = pool.allocate(order.blocks[block].size_bytes)
        workspace = pool.allocate(item.task.workspace_bytes)
        peak_bytes = max(peak_bytes, results_bytes + pool.held_bytes)
        pool.free(workspace, item.task.workspace_bytes)
        for block in last_used:
            if block in addresses:
                pool.free(addresses.pop(block), order.blocks[block].size_bytes)
    return peak_bytes
