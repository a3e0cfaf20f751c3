"""The update of the weights as a part of a step's graph.

    forward ... loss ... backward ...    update(weights, gradients, states)

A task of the update reads the weights, their gradients and the optimizer's states, and writes weights and states. The states
are external blocks. A gradient that is freed after the update is a block like any other, no longer a result of the step; one
that is kept is an accumulator, to which the backward pass adds. Its tasks are layers of their own behind the backward pass.

They have no call: a simulator times them, and in a step that runs for real the backend hands them to torch's optimizer.
"""

from dataclasses import replace

from membench.core.errors import MembenchError
from membench.core.optimizer import Gradients, UpdateOf, UpdateRule
from membench.core.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.core.workload import Workload


def updated_workload(workload: Workload, optimizer: object | None) -> Workload:
    """Return the workload to capture for a step with this optimizer: gradients that its rule keeps are added to.

    Raises:
        MembenchError: a step of inference has no gradients.
    """
    if optimizer is None:
        return workload
    if workload.loss is None:
        raise MembenchError(
            "a step of inference has no gradients for an optimizer; leave it out, or pass a loss"
        )
    is_kept = isinstance(optimizer, UpdateRule) and optimizer.gradients == Gradients.KEPT
    return replace(workload, accumulates=True) if is_kept else workload


def add_states(graph: TaskGraph, update_of: UpdateOf | None) -> TaskGraph:
    """Return the graph with the optimizer's states alone, as in micro-batches before the last; None: as it is."""
    if update_of is None:
        return graph
    blocks = list(graph.blocks)
    for weight, states in update_of(graph).states.items():
        for state, size_bytes in states.items():
            name = f"{weight}:{state}"
            blocks.append(Block(len(blocks), name, size_bytes, Role.OPTIMIZER_STATE, layer=-1))
    return replace(graph, blocks=tuple(blocks), plain=graph.plain and add_states(graph.plain, update_of))


def add_update(graph: TaskGraph, update_of: UpdateOf | None) -> TaskGraph:
    """Return the graph with the optimizer's states, and with the update behind the backward pass; None: as it is."""
    if update_of is None:
        return graph
    plain = graph.plain and add_update(graph.plain, update_of)
    update = update_of(graph)
    gradients = {name: value.block for name, value in graph.gradients if value is not None}
    updated = {gradients[name] for task in update.tasks for name in task.weights}
    graph = add_states(graph, update_of)
    if update.gradients is Gradients.FREED:
        graph = _with_freed(graph, updated)
    kept = (block for block in graph.blocks if block.role in (Role.WEIGHT, Role.OPTIMIZER_STATE))
    by_name = {block.name: block.index for block in kept}
    tasks, layers = list(graph.tasks), list(graph.layers)
    for part in update.tasks:
        weights = [by_name[weight] for weight in part.weights]
        states = [by_name[f"{w}:{state}"] for w in part.weights for state in update.states.get(w, ())]
        read = [gradients[weight] for weight in part.weights]
        written = [*weights, *states, *(read if update.gradients is Gradients.KEPT else ())]
        layers.append(part.weights[0] + ":update" if len(update.tasks) > 1 else "update")
        task = Task(
            index=len(tasks),
            name=layers[-1],
            kind=Kind.OTHER,
            phase=Phase.UPDATE,
            layer=len(layers) - 1,
            reads=tuple(dict.fromkeys([*weights, *read, *states])),
            writes=tuple(dict.fromkeys(written)),
            creates=(),
            operations=part.operations,
            moved_bytes=part.moved_bytes,
            workspace_bytes=part.workspace_bytes,
        )
        tasks.append(task)
    return replace(graph, tasks=tuple(tasks), layers=tuple(layers), plain=plain)


def _with_freed(graph: TaskGraph, gradients: set[int]) -> TaskGraph:
    """Return the graph in which these gradients are not results of the step; those of micro-batches stay accumulators."""
    blocks = (
        replace(block, role=Role.APPLIED_GRADIENT)
        if block.index in gradients and block.role is Role.WEIGHT_GRADIENT
        else block
        for block in graph.blocks
    )
    return replace(graph, blocks=tuple(blocks))
