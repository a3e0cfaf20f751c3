"""Plain PyTorch: memory is given back where Python's variables and autograd give it back.

The step is ``loss(module(inputs), targets).backward()``, with gradients of None before. A local variable of a forward
function or a list of features holds an activation until the function returns, also one that no task uses again; autograd
gives back what it saved for the backward pass node by node. On the CPU the predicted peak is that of torch's allocator.

Not `eager`, which frees each block after its last use and computes only what is used, so that it may hold less.
"""

from membench.core.cost_model import CostModel
from membench.core.errors import UnsupportedStrategy
from membench.core.schedule import Schedule
from membench.core.task_graph import Mode, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy


class PyTorch(Strategy):
    """Plain PyTorch's own order and lifetimes; nothing offloaded, recomputed or compressed."""

    name = "pytorch"
    modes = frozenset(Mode)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        if graph.plain is None:
            raise UnsupportedStrategy(
                f"strategy {self.name!r} is plain PyTorch's execution, and this graph is another framework's; choose "
                "framework=pytorch, or strategy=eager"
            )
        plain = join_convolution_backward(graph.plain, cost)
        builder = ScheduleBuilder(self.name, plain, budget_bytes=budget_bytes)
        for task in plain.tasks:
            builder.compute(task)
            for block in task.releases:
                builder.free(block)
        return builder.finish()
