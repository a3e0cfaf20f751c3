"""Plain PyTorch: memory is given back where Python's variables and autograd give it back.

The step is ``loss(module(inputs), targets).backward()``, with gradients of None before. A local variable of a forward
function or a list of features holds an activation until the function returns, also one that no task uses again;
autograd gives back what it saved for the backward pass node by node. On the CPU the predicted peak is that of torch's
allocator.

Not `eager`, which frees each block after its last use and computes only what is used, so that it may hold less.
"""

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Mode, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy


class PyTorch(Strategy):
    """Plain PyTorch's own order and lifetimes; nothing offloaded, recomputed or compressed."""

    name = "pytorch"
    plans_for_budgets = False
    modes = frozenset(Mode)
    runs_as_written = True

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        plain = join_convolution_backward(self.scheduled(graph), cost)
        builder = ScheduleBuilder(self.name, plain, budget_bytes=budget_bytes)
        for task in plain.tasks:
            builder.compute(task)
            for block in task.releases:
                builder.free(block)
        return builder.finish()
