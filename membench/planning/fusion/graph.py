"""Fusion: tasks that a compiler runs as one become one task, whose call is a `Program`.

    conv   batch norm   add   relu   conv           conv   [batch norm, add, relu]   conv
           x        y        z     r         ->            x                     r

Grouped as `torch._inductor.scheduler` fuses: pointwise operators, reductions, normalizations, softmax and losses with the makers
of what they read, where no other task runs between them. Products, convolutions, pooling and indexing are tasks as before. What a
group makes and no other task reads is in no block.

A task stays alone if it draws random numbers, takes part in a collective, or writes to the caller's blocks (of which batch
norm's running statistics alone are exact in a program: a recomputed one leaves them out).
"""

from dataclasses import replace

from membench.core.task_graph import TaskGraph, numbered
from membench.planning.fusion.clamps import clamped_gradients_from_results
from membench.planning.fusion.groups import Groups
from membench.planning.fusion.operators import is_fusible, is_pointwise
from membench.planning.fusion.recomputation import recompute_in_kernels


def fused(graph: TaskGraph) -> TaskGraph:
    """Return the graph with groups of tasks as one task each; the blocks keep their numbers.

    The graph is one of its own: it has no `TaskGraph.plain`.
    """
    graph = clamped_gradients_from_results(graph)
    graph = recompute_in_kernels(graph, lambda task: is_fusible(task, graph), is_pointwise)
    groups = Groups(graph)
    for task in graph.tasks:
        groups.join(task)
    return replace(graph, tasks=numbered(groups.tasks()), plain=None)
