"""The update of the weights as a part of a step's graph.

    forward ... loss ... backward ...    update(weights, gradients, states)                as a whole
    forward ... loss ... backward, update(weights), backward, update(weights) ...         in parts

A task of the update reads weights, their gradients and the optimizer's states, and writes weights and states. The
states are external blocks. A gradient that is freed after the update is a block like any other, no longer a result of
the step; one that is kept is an accumulator, to which the backward pass adds. Behind the backward pass its tasks are
layers of their own; in the backward pass they belong to the layer of the last task that needs the weights or their
gradients, which they follow.

They have no call: a simulator times them, and in a step that runs for real the backend hands them to torch's optimizer.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import or_

from membench.core.errors import MembenchError
from membench.core.graph.task_graph import AFTER_THE_LOSS, EXTERNAL_ROLES, Block, Phase, Role, Task, TaskGraph
from membench.core.step.optimizer import Gradients, Update, UpdateOf, UpdateTask, WeightUpdate, names_of
from membench.core.step.workload import Workload
from membench.planning.rewrites.rewrite import are_halves


def updated_workload(workload: Workload, by: WeightUpdate | None) -> Workload:
    """Return the workload to capture for a step that updates its weights: gradients that are kept are added to.

    Raises:
        MembenchError: a step of inference has no gradients.
    """
    if by is None:
        return workload
    if workload.loss is None:
        raise MembenchError("a step of inference has no gradients for an optimizer; leave it out, or pass a loss")
    kept, late = (by.gradients is gradients for gradients in (Gradients.KEPT, Gradients.FREED_LATE))
    return replace(workload, accumulates=kept, holds_gradients=late)


def add_states(graph: TaskGraph, update_of: UpdateOf | None) -> TaskGraph:
    """Return the graph with the optimizer's states alone, as in micro-batches before the last; None: as it is."""
    if update_of is None:
        return graph
    update = update_of(graph)
    return graph.map(lambda each: _with_states(each, update))


def add_update(graph: TaskGraph, update_of: UpdateOf | None) -> TaskGraph:
    """Return the graph with optimizer states and the update in parts, in `TaskGraph.plain` as the program runs it.

    Args:
        update_of: None: the graph stays as it is.
    """
    if update_of is None:
        return graph
    update = update_of(graph)

    def updated(graph: TaskGraph) -> TaskGraph:
        graph = _with_states(graph, update)
        tasks = _tasks(graph, update, update.tasks if graph.is_plain else update.parts)
        graph = _with_freed(graph, update, tasks)
        if not (update.in_backward if graph.is_plain else update.is_divided):
            return _behind_backward(graph, tasks)
        lasts = _last_uses(graph, tasks) if graph.is_plain else _last_needs(graph, tasks)
        return _in_backward(graph, tasks, lasts)

    return graph.map(updated)


def undivided(update_of: UpdateOf) -> UpdateOf:
    """Return an update that runs as a whole, at the end of the step: where gradients must all be there first.

    That of an optimizer which runs in the backward pass stays there.
    """
    return lambda graph: replace(update_of(graph), parts=())


def _with_states(graph: TaskGraph, update: Update) -> TaskGraph:
    blocks = list(graph.blocks)
    for weight, states in update.states.items():
        for state, size_bytes in states.items():
            name = f"{weight}:{state}"
            blocks.append(Block(len(blocks), name, size_bytes, Role.OPTIMIZER_STATE, layer=-1))
    return replace(graph, blocks=tuple(blocks))


def _tasks(graph: TaskGraph, update: Update, parts: Sequence[UpdateTask]) -> list[Task]:
    """Return tasks of the update, not yet in the graph."""
    kept = (block for block in graph.blocks if block.role in (Role.WEIGHT, Role.OPTIMIZER_STATE))
    by_name = {block.name: block.index for block in kept}
    gradients = {name: value.block for name, value in graph.gradients if value is not None}
    named = zip(parts, names_of(parts), strict=True)
    return [_task(part, name, update, by_name, gradients) for part, name in named]


def _task(
    part: UpdateTask, name: str, update: Update, by_name: Mapping[str, int], gradients: Mapping[str, int]
) -> Task:
    weights = [by_name[weight] for weight in part.weights]
    states = [
        by_name[f"{weight}:{state}"]
        for weight in part.weights
        for state in update.states.get(weight, ())
        if state in part.states
    ]
    read = [gradients[weight] for weight in part.weights] if part.uses_gradients else []
    changed = [by_name[weight] for weight in part.weights if weight not in part.sent]
    written = [*changed, *states, *(read if update.gradients is Gradients.KEPT else ())]
    return Task(
        index=-1,
        name=name,
        kind=part.kind,
        phase=Phase.UPDATE,
        layer=-1,
        reads=tuple(dict.fromkeys([*weights, *read, *states])),
        writes=tuple(dict.fromkeys(written)),
        creates=(),
        operations=part.operations,
        moved_bytes=part.moved_bytes,
        host_bytes=part.host_bytes,
        cpu_moved_bytes=part.cpu_moved_bytes,
        workspace_bytes=part.workspace_bytes,
        launches=part.launches,
        precision=part.precision,
        collective=part.collective,
    )


def _behind_backward(graph: TaskGraph, updates: list[Task]) -> TaskGraph:
    """Return the graph with tasks of the update as its last layers."""
    layers = (*graph.layers, *(task.name for task in updates))
    added = (
        replace(task, index=len(graph.tasks) + number, layer=len(graph.layers) + number)
        for number, task in enumerate(updates)
    )
    return replace(graph, tasks=(*graph.tasks, *added), layers=layers)


def _in_backward(graph: TaskGraph, updates: list[Task], last_needs: list[int]) -> TaskGraph:
    """Return the graph with each task of the update behind the last task that needs a weight of it or its gradient.

    The two halves of a convolution's backward pass are one node of autograd, which updates follow.
    """
    due = defaultdict[int, list[Task]](list)
    for task, last in zip(updates, last_needs, strict=True):
        if any(are_halves(graph.tasks[last], following) for following in graph.tasks[last + 1 : last + 2]):
            last += 1
        due[last].append(task)
    ordered = [task for before in graph.tasks for task in due[before.index]]
    freed = {  # by block, the last update that reads it: several gradients may share one
        block: task
        for task in ordered
        for block in task.reads
        if graph.blocks[block].role is Role.APPLIED_GRADIENT and graph.is_plain
    }
    tasks: list[Task] = []
    for before in graph.tasks:
        tasks.append(replace(before, index=len(tasks)))
        for task in due[before.index]:
            releases = tuple(block for block in task.reads if freed.get(block) is task)
            tasks.append(replace(task, index=len(tasks), layer=before.layer, releases=releases))
    return replace(graph, tasks=tuple(tasks))


def _last_uses(graph: TaskGraph, updates: list[Task]) -> list[int]:
    """Return for each task of the update the last task that uses a weight of it or its gradient.

    Tasks on the same weights stay in order: averages do not read gradients.
    """
    last_use, last_uses = list(graph.last_use), []
    for task in updates:
        last_uses.append(max(last_use[block] for block in task.reads))
        for block in task.writes:
            last_use[block] = last_uses[-1]
    return last_uses


def _last_needs(graph: TaskGraph, updates: list[Task]) -> list[int]:
    """Return `_last_uses`, or later tasks that read what the forward pass has made of the weights.

    A method may drop that and compute it again from the weights, which must not have changed by then. A gradient that a
    collective makes is not waited for before the device waits for that collective anyway.
    """
    made_of = [0] * len(graph.blocks)  # bit by bit, the tasks of the update whose weights a block is made of
    for number, task in enumerate(updates):
        for block in task.writes:
            made_of[block] |= 1 << number
    for task in graph.tasks:
        if task.phase not in AFTER_THE_LOSS:
            sources = reduce(or_, (made_of[block] for block in task.reads), 0)
            for block in task.writes:
                if graph.blocks[block].role not in EXTERNAL_ROLES:
                    made_of[block] |= sources
    last_needs, found = _last_uses(graph, updates), 0
    for task in reversed(graph.tasks):
        needed = reduce(or_, (made_of[block] for block in task.reads), 0) & ~found
        found |= needed
        while needed:
            number = needed.bit_length() - 1
            last_needs[number] = max(last_needs[number], task.index)
            needed ^= 1 << number
    writer = {block: task for task in graph.tasks for block in task.writes}
    makers = ((writer[block] for block in task.reads if block in writer) for task in updates)
    return [max([last, *map(partial(_arrival, graph), of)]) for last, of in zip(last_needs, makers, strict=True)]


def _arrival(graph: TaskGraph, made_by: Task) -> int:
    """Return the task behind which what a task has made is there.

    Of a collective: behind those that are issued where memory that it uses is given back, which the device waits for
    anyway.
    """
    if made_by.collective is None:
        return made_by.index
    used = {*made_by.reads, *made_by.writes}
    later = graph.tasks[made_by.index + 1 :]
    end = len(graph.tasks) - 1
    arrival = next((task.index for task in later if not used.isdisjoint((*task.reads, *task.writes))), end)
    while arrival < end and graph.tasks[arrival + 1].collective:
        arrival += 1
    return arrival


def _with_freed(graph: TaskGraph, update: Update, tasks: list[Task]) -> TaskGraph:
    """Return the graph in which freed gradients are not results; micro-batches' stay accumulators.

    Raises:
        MembenchError: a gradient that is updated shares a block with one that is not, as shards of a module's gradients
            do.
    """
    if update.gradients is not Gradients.FREED:
        return graph
    updated = {weight for part in update.tasks if part.uses_gradients for weight in part.weights}
    freed = {value.block for name, value in graph.gradients if value and name in updated}
    freed &= {block for task in tasks for block in task.reads}
    if left := next(
        (name for name, value in graph.gradients if value and value.block in freed and name not in updated), None
    ):
        raise MembenchError(
            f"the optimizer does not update {left!r}, whose gradient is reduced with those that it updates; let it "
            "update all weights, or freeze that one"
        )
    blocks = (
        replace(block, role=Role.APPLIED_GRADIENT)
        if block.index in freed and block.role is Role.WEIGHT_GRADIENT
        else block
        for block in graph.blocks
    )
    return replace(graph, blocks=tuple(blocks))
