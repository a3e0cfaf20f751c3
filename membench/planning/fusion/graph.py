"""Fusion: tasks that a compiler runs as one become one task, whose call is a `Program`.

    conv   batch norm   add   relu   conv           conv   [batch norm, add, relu]   conv
           x        y        z     r         ->            x                     r

Grouped as `torch._inductor.scheduler` fuses: pointwise operators, reductions, normalizations, softmax and losses with
the makers of what they read, where no other task runs between them. Products, convolutions, pooling and indexing are
tasks as before. What a group makes and no other task reads is in no block.

A task stays alone if it draws random numbers, takes part in a collective, or writes to the caller's blocks (of which
batch norm's running statistics alone are exact in a program: a recomputed one leaves them out).
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from membench.core.graph.changed_tasks import numbered
from membench.core.graph.task_graph import Task, TaskGraph
from membench.core.step.kernels import WHOLE_STEP, Compiled
from membench.planning.fusion.clamps import clamped_gradients_from_results
from membench.planning.fusion.groups import Groups
from membench.planning.fusion.in_place import with_gradients_in_place
from membench.planning.fusion.operators import is_cheap, is_fusible, is_run_again
from membench.planning.fusion.order import with_late_gradients
from membench.planning.fusion.recomputation import recompute_in_kernels
from membench.planning.fusion.regions import Regions


def fused(
    graph: TaskGraph, compiled: Compiled = WHOLE_STEP, apart: Collection[str] = (), *, on_cpu: bool = False
) -> TaskGraph:
    """Return the graph with groups of tasks as one task each; the blocks keep their numbers.

    `TaskGraph.plain` is the step as PyTorch runs it with these compiled: compiled code gives a block back after its
    last use, and keeps some cheap results, such as concatenations, which methods' steps compute again within kernels of
    the backward pass.

    Args:
        compiled: what of the step is.
        apart: paths of modules at whose edges compiled graphs end.
        on_cpu: it is compiled for the CPU, which fuses less, and runs here: as Inductor does, gradients lie in memory
            that is not used any more, and large gradients of weights are made last. Predictions for GPUs keep the
            program's order, in which an exchange starts.
    """

    def of_one(graph: TaskGraph) -> TaskGraph:
        made = _fused(graph, compiled, apart, on_cpu)
        if graph.is_plain or not on_cpu:
            return made
        return replace(made, tasks=numbered(with_late_gradients(made, with_gradients_in_place(made))))

    return graph.map(of_one)


def _fused(graph: TaskGraph, compiled: Compiled, apart: Collection[str], on_cpu: bool) -> TaskGraph:
    regions = Regions(graph, compiled, apart)

    def region_of(task: Task) -> object:
        return regions.of(task) if is_fusible(task, graph, on_cpu=on_cpu) else None

    graph = clamped_gradients_from_results(graph, lambda task: regions.of(task) is not None)
    graph = recompute_in_kernels(graph, region_of, is_run_again if graph.is_plain else is_cheap)
    groups = Groups(graph, region_of)
    for task in graph.tasks:
        groups.join(task)
    tasks = tuple(
        replace(task, index=index, is_compiled=regions.of(task) is not None)
        for index, task in enumerate(groups.tasks())
    )
    if any(task.releases for task in graph.tasks):
        tasks = _releasing(graph, tasks, groups.positions(), lambda task: regions.of(task) is not None)
    return replace(graph, tasks=tasks)


def _releasing(
    graph: TaskGraph, tasks: tuple[Task, ...], positions: list[int], is_compiled: Callable[[Task], bool]
) -> tuple[Task, ...]:
    """Return the tasks with the blocks that each gives back.

    Args:
        tasks: the fused graph's tasks.
        positions: positions among them, of each task of the graph.
    """
    held = {block: positions[task.index] for task in graph.tasks if not is_compiled(task) for block in task.releases}
    last = {block: task.index for task in tasks for block in (*task.reads, *task.writes)}
    released: list[list[int]] = [[] for _ in tasks]
    for block, position in last.items():
        if graph.blocks[block].is_transient:
            released[max(position, held.get(block, 0))].append(block)
    return tuple(replace(task, releases=tuple(released[task.index])) for task in tasks)
