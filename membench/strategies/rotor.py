"""Rotor: the fastest way to recompute a chain within a budget, where what is stored stays until it is used.

Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains: how to train deep
neural networks with limited memory", 2019 (ACM TOMS 2021). The network is a chain of stages. A stage runs forward and
stores all that its backward pass reads (F_all), or only its output (F_ck, F_none), and then runs again later, any
number of times. Among persistent schedules, in which a stored input stays until its stage's backward pass, a dynamic
program finds the fastest one for stages s to t in m slots of memory (Theorem 1, Algorithm 1): either

- s stores all, and s + 1 to t have what is left; or
- s to s' - 1 run without storing, the input of s' is stored, s' to t run forward and backward, and then s to s' - 1.

Nothing is copied to the host. Without a budget nothing is recomputed.

Readings. A stage ends wherever the forward pass hands one block on (`chain.stages`). The paper groups what is not a
chain into one stage; where that would be large, blocks that skip over others are kept in addition, and the rest is cut.
Weight gradients, which the paper counts with the model, take slots once they are computed. What cannot be computed
again (masks of dropout) and small blocks are kept. Sizes are rounded up to slots; in return the table is filled beyond
the budget, and of its schedules the one with the most slots is taken whose peak, counted in bytes, keeps the budget.

Not memonger, which chooses segments by size and recomputes each once; not `pofo`, which also copies to the host.
"""

from functools import cache
from typing import TYPE_CHECKING

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import FixedPool
from membench.planning.rewrites.recompute import Order, RenamedTask, reordered
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.chain.stages import Chain
from membench.strategies.on_demand import compute_on_demand, on_demand_peak_bytes

if TYPE_CHECKING:
    from membench.strategies.chain.persistent import Table

BEYOND = 1.25
"""Memory up to which the table is filled, in budgets."""


class Rotor(Strategy):
    """Rotor: optimal persistent checkpointing of a chain (Beaumont et al. 2019, Algorithm 1).

    Args:
        slots: the memory of the dynamic program is divided into at most that many.
    """

    name = "rotor"

    def __init__(self, slots: int = 500) -> None:
        self._slots = slots

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = join_convolution_backward(graph, cost)
        eager = Order(tuple(RenamedTask(task, {}) for task in graph.tasks), graph.blocks)
        eager_bytes = peak_bytes(graph, eager)
        if budget_bytes is not None and budget_bytes < eager_bytes:
            order = Tables(Chain(graph, cost), eager_bytes, self._slots).fastest(budget_bytes) or eager
            if peak_bytes(graph, order) < eager_bytes:
                graph = reordered(graph, order)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        compute_on_demand(builder, graph.tasks)
        return builder.finish()


class Tables:
    """The tables of a chain, each filled once.

    Args:
        eager_bytes: peak without recomputation.
        slots: the most into which the memory is divided.
    """

    def __init__(self, chain: Chain, eager_bytes: int, slots: int) -> None:
        self.chain, self._slots = chain, slots
        self._eager_bytes = eager_bytes
        self.up_to = cache(self._up_to)

    @property
    def largest(self) -> "Table":
        """The table for memory up to the peak without recomputation."""
        return self.up_to(self._eager_bytes)

    def fastest(self, budget_bytes: int) -> Order | None:
        """Return the fastest order found within a budget; where none keeps it, one that needs little; None: none."""
        order = None
        for limit_bytes in (int(BEYOND * budget_bytes), self._eager_bytes):
            if limit_bytes > self.chain.fixed_bytes:
                order = largest_within(self.up_to(limit_bytes), budget_bytes) or order
                if order and peak_bytes(self.chain.problem.graph, order) <= budget_bytes:
                    return order
        return order

    def _up_to(self, limit_bytes: int) -> "Table":
        from membench.strategies.chain.persistent import fill  # numba takes a second to import

        return fill(self.chain, max(1, limit_bytes - self.chain.fixed_bytes), self._slots)


def largest_within(table: "Table", budget_bytes: int) -> Order | None:
    """Return the order of a table with the most slots whose peak keeps a budget, or else with the fewest; None: none.

    Peaks are taken to grow with slots.
    """
    found = table.feasible_slots()
    low, high = 0, len(found) - 1
    best = table.order(found[0]) if found else None
    while low <= high:
        middle = (low + high + 1) // 2
        order = table.order(found[middle])
        if peak_bytes(table.chain.problem.graph, order) <= budget_bytes:
            best, low = order, middle + 1
        else:
            high = middle - 1
    return best


def peak_bytes(graph: TaskGraph, order: Order) -> int:
    """Return the peak of an order of a graph's tasks, everything included."""
    return graph.external_bytes + on_demand_peak_bytes(order, FixedPool(0))
