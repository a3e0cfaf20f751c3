"""The update of the weights as a part of a step's graph.

    forward ... loss ... backward ...    update(weights, gradients, states)
    forward ... loss ... backward, update(weight), backward, update(weight) ...    in the backward pass

A task of the update reads weights, their gradients and the optimizer's states, and writes weights and states. The states are
external blocks. A gradient that is freed after the update is a block like any other, no longer a result of the step; one that
is kept is an accumulator, to which the backward pass adds. Behind the backward pass its tasks are layers of their own; in the
backward pass they belong to the layer of the last task that uses the weight or its gradient, which they follow.

They have no call: a simulator times them, and in a step that runs for real the backend hands them to torch's optimizer.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from membench.core.errors import MembenchError
from membench.core.optimizer import Gradients, Update, UpdateOf, UpdateTask, WeightUpdate
from membench.core.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.core.workload import Workload
from membench.planning.rewrite import are_halves


def updated_workload(workload: Workload, by: WeightUpdate | None) -> Workload:
    """Return the workload to capture for a step that updates its weights: gradients that are kept are added to.

    Raises:
        MembenchError: a step of inference has no gradients.
    """
    if by is None:
        return workload
    if workload.loss is None:
        raise MembenchError(
            "a step of inference has no gradients for an optimizer; leave it out, or pass a loss"
        )
    return replace(workload, accumulates=True) if by.gradients is Gradients.KEPT else workload


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
    """Return the graph with the optimizer's states, and with the update; None: as it is."""
    if update_of is None:
        return graph
    plain = graph.plain and add_update(graph.plain, update_of)
    update = update_of(graph)
    graph = add_states(graph, update_of)
    tasks = _tasks(graph, update)
    if update.gradients is Gradients.FREED:
        gradients = {value.block for _, value in graph.gradients if value is not None}
        graph = _with_freed(graph, {block for task in tasks for block in gradients.intersection(task.reads)})
    placed = _in_backward(graph, tasks) if update.in_backward else _behind_backward(graph, tasks)
    return replace(placed, plain=plain)


def _tasks(graph: TaskGraph, update: Update) -> list[Task]:
    """Return the tasks of the update, not yet in the graph."""
    kept = (block for block in graph.blocks if block.role in (Role.WEIGHT, Role.OPTIMIZER_STATE))
    by_name = {block.name: block.index for block in kept}
    gradients = {name: value.block for name, value in graph.gradients if value is not None}
    return [_task(part, update, by_name, gradients) for part in update.tasks]


def _task(part: UpdateTask, update: Update, by_name: Mapping[str, int], gradients: Mapping[str, int]) -> Task:
    weights = [by_name[weight] for weight in part.weights]
    states = [
        by_name[f"{weight}:{state}"]
        for weight in part.weights
        for state in update.states.get(weight, ())
        if state in part.states
    ]
    read = [gradients[weight] for weight in part.weights] if part.uses_gradients else []
    written = [*weights, *states, *(read if update.gradients is Gradients.KEPT else ())]
    name = part.weights[0] + ":update" if len({task.weights for task in update.tasks}) > 1 else "update"
    return Task(
        index=-1,
        name=name + (" of products" if part.kind is Kind.LINEAR else "") + ("" if read else " of averages"),
        kind=part.kind,
        phase=Phase.UPDATE,
        layer=-1,
        reads=tuple(dict.fromkeys([*weights, *read, *states])),
        writes=tuple(dict.fromkeys(written)),
        creates=(),
        operations=part.operations,
        moved_bytes=part.moved_bytes,
        host_bytes=part.host_bytes,
        workspace_bytes=part.workspace_bytes,
        launches=part.launches,
        precision=part.precision,
    )


def _behind_backward(graph: TaskGraph, updates: list[Task]) -> TaskGraph:
    """Return the graph with tasks of the update as its last layers."""
    layers = (*graph.layers, *(task.name for task in updates))
    added = (
        replace(task, index=len(graph.tasks) + number, layer=len(graph.layers) + number)
        for number, task in enumerate(updates)
    )
    return replace(graph, tasks=(*graph.tasks, *added), layers=layers)


def _in_backward(graph: TaskGraph, updates: list[Task]) -> TaskGraph:
    """Return the graph with each task of the update behind the last task that uses a weight of it or its gradient.

    The two halves of a convolution's backward pass are one node of autograd, which updates follow.
    """
    due = defaultdict[int, list[Task]](list)
    for task in updates:
        last = max(graph.last_use[block] for block in task.reads)
        if any(are_halves(graph.tasks[last], following) for following in graph.tasks[last + 1 : last + 2]):
            last += 1
        due[last].append(task)
    tasks: list[Task] = []
    for before in graph.tasks:
        tasks.append(replace(before, index=len(tasks)))
        for task in due[before.index]:
            freed = [block for block in task.reads if graph.blocks[block].role is Role.APPLIED_GRADIENT]
            releases = () if graph.plain else tuple(freed)
            tasks.append(replace(task, index=len(tasks), layer=before.layer, releases=releases))
    return replace(graph, tasks=tuple(tasks))


def _with_freed(graph: TaskGraph, gradients: set[int]) -> TaskGraph:
    """Return the graph in which these gradients are not results of the step; those of micro-batches stay accumulators."""
    blocks = (
        replace(block, role=Role.APPLIED_GRADIENT)
        if block.index in gradients and block.role is Role.WEIGHT_GRADIENT
        else block
        for block in graph.blocks
    )
    return replace(graph, blocks=tuple(blocks))
