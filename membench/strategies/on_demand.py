"""Memory on demand: each block is held from its first use to its last."""

from collections.abc import Iterable

from membench.core.task_graph import RESULT_ROLES, Task
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import Pool
from membench.planning.recompute import Order


def compute_on_demand(builder: ScheduleBuilder, tasks: Iterable[Task]) -> None:
    """Run tasks in their order, and free what is dead after each."""
    for task in tasks:
        builder.compute(task)
        builder.free_dead()


def on_demand_peak_bytes(order: Order, pool: Pool) -> int:
    """Return the most that an order of tasks holds on demand, beside the caller's blocks and the framework's overhead.

    What a schedule would hold that `compute_on_demand` builds of it, for a planner that compares many orders.

    Args:
        pool: an empty one, out of which all but the results of the step is served.
    """
    uses = [
        [run.copies.get(b, b) for b in dict.fromkeys((*run.task.reads, *run.task.writes))]
        for run in order.runs
    ]
    last_use = {block: position for position, used in enumerate(uses) for block in used}
    addresses: dict[int, int] = {}
    results_bytes = peak_bytes = 0
    for position, (run, used) in enumerate(zip(order.runs, uses, strict=True)):
        for created in run.task.creates:
            block = run.copies.get(created, created)
            if order.blocks[block].role in RESULT_ROLES:
                results_bytes += order.blocks[block].size_bytes
            else:
                addresses[block] = pool.allocate(order.blocks[block].size_bytes)
        workspace = pool.allocate(run.task.workspace_bytes)
        peak_bytes = max(peak_bytes, results_bytes + pool.held_bytes)
        pool.free(workspace, run.task.workspace_bytes)
        for block in used:
            if last_use[block] == position and block in addresses:
                pool.free(addresses.pop(block), order.blocks[block].size_bytes)
    return peak_bytes
