"""Checkmate: what to keep and what to compute again, as a mixed-integer linear program that is solved exactly.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020. Binary variables
R[e, i] and S[e, v]: whether node i runs in epoch e, and whether value v is in memory when the epoch begins. The program
minimises the seconds of all R (Equation 1) under the dependencies of data (1b, 1c), and with what is held while each
node runs at most the budget (Section 4.3, Equations 2 to 5). An epoch advances the frontier by one node (Section 4.6).

Readings. A node is a layer, or where these are too many a stage of the network cut as a chain (`chain.stages`): a
program of all tasks takes hours. A node has several values, one for each set of nodes that read it. The epochs of the
forward pass are one, since nothing is computed twice before the loss, and a node's backward pass ends each later epoch.
A value is freed after its last reader of an epoch unless the next one keeps it: the paper's FREE, as a bound on what is
held, without variables of its own. What cannot run again is kept. The solver is HiGHS (the paper: Gurobi); at its time
limit the best solution found counts, which depends on the machine. A node's run counts all its seconds, though what it
makes and nothing reads is not made again. Nothing is copied to the host. Without a budget nothing is recomputed.

Left out: the approximation by rounding the relaxation (Section 5).
Not `rotor`, which solves chains by dynamic programming.
"""

from itertools import pairwise

from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import AFTER_THE_LOSS, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.recompute import Order, RenamedTask, reordered
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.chain.stages import Chain
from membench.strategies.on_demand import compute_on_demand
from membench.strategies.rotor import peak_bytes


class Checkmate(Strategy):
    """Checkmate: optimal recomputation by mixed-integer programming, for small graphs (Jain et al. 2020).

    Args:
        most_nodes: refuse graphs that have more layers, and more stages as a chain.
        time_limit_s: the solver's time limit.
    """

    name = "checkmate"

    def __init__(self, most_nodes: int = 30, time_limit_s: float = 60) -> None:
        self._most_nodes, self._time_limit_s = most_nodes, time_limit_s

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = join_convolution_backward(graph, cost)
        eager = Order(tuple(RenamedTask(task, {}) for task in graph.tasks), graph.blocks)
        eager_bytes = peak_bytes(graph, eager)
        if budget_bytes is not None and budget_bytes < eager_bytes:
            order = self._order(self._chain(graph, cost), budget_bytes)
            if peak_bytes(graph, order) < eager_bytes:
                graph = reordered(graph, order)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        compute_on_demand(builder, graph.tasks)
        return builder.finish()

    def _chain(self, graph: TaskGraph, cost: CostModel) -> Chain:
        """Return the graph in nodes.

        Raises:
            UnsupportedStrategy: there are too many.
        """
        ends = layer_ends(graph)
        if len(ends) < self._most_nodes:
            return Chain(graph, cost, ends)
        chain = Chain(graph, cost)
        if len(chain.stages) > self._most_nodes:
            raise UnsupportedStrategy(
                f"checkmate solves programs of at most {self._most_nodes} nodes, and this graph has {len(ends) + 1} "
                f"layers in "
                f"{len(chain.stages)} stages; raise strategy.most_nodes, or choose rotor"
            )
        return chain

    def _order(self, chain: Chain, budget_bytes: int) -> Order:
        """Return the fastest order within a budget; where there is none, the one that needs least.

        Raises:
            UnsupportedStrategy: the solver found neither in its time.
        """
        from membench.strategies.chain.integer_program import IntegerProgram  # scipy takes a second to import

        program = IntegerProgram(chain)
        order = program.fastest(budget_bytes, self._time_limit_s) or program.smallest(self._time_limit_s)
        if order is None:
            raise UnsupportedStrategy(
                f"checkmate's solver found no schedule of {len(chain.stages)} nodes in {self._time_limit_s:g} s; raise "
                "strategy.time_limit_s, or choose rotor"
            )
        return order


def layer_ends(graph: TaskGraph) -> list[int]:
    """Return the positions behind each layer but the last in the forward pass; what is written in place is not cut."""
    tasks = [task for task in graph.tasks if task.phase not in AFTER_THE_LOSS]
    last_write = {block: position for position, task in enumerate(tasks) for block in task.writes}
    ends, latest = [], 0
    for position, (task, following) in enumerate(pairwise(tasks)):
        latest = max([latest, *(last_write[block] for block in task.creates)])
        if latest <= position and following.layer != task.layer:
            ends.append(position + 1)
    return ends
