"""Rewrites of a graph that a strategy may apply before it schedules; they keep every bit of the results.

A rewrite that changes tasks takes the cost model and returns an annotated graph.
"""

from collections.abc import Container
from dataclasses import dataclass, replace

import torch

from membench.core.graph.call import Call, Value
from membench.core.graph.changed_tasks import numbered, rename_blocks
from membench.core.graph.task_graph import (
    EXTERNAL_ROLES,
    RESULT_ROLES,
    Block,
    HostLocation,
    Kind,
    Phase,
    Role,
    Task,
    TaskGraph,
)
from membench.core.hardware.cost_model import CostModel
from membench.core.libraries.torch_internals import tree_leaves


def keep_on_host(graph: TaskGraph, roles: frozenset[Role], *, updated: bool = False, least_bytes: int = 0) -> TaskGraph:
    """Return the graph with the caller's blocks of these roles in host memory, from where a strategy prefetches them.

    Blocks that the step returns stay on the device. Tasks, and so their workspaces, stay as they are.

    Args:
        updated: include blocks that the step updates, for a strategy that copies them back.
        least_bytes: smaller blocks stay on the device.
    """
    stay = set() if updated else {block for task in graph.tasks for block in task.writes}
    stay |= _staying(graph)
    blocks = (
        replace(block, host_location=HostLocation(block.index))
        if block.role in roles & EXTERNAL_ROLES and block.index not in stay and block.size_bytes >= least_bytes
        else block
        for block in graph.blocks
    )
    return replace(graph, blocks=tuple(blocks))


def update_on_host(graph: TaskGraph, chosen: Container[int] | None = None) -> TaskGraph:
    """Return the graph in which update tasks run on the host, where the caller's blocks that they use have their home.

    Args:
        chosen: tasks of the update, each with all others that write its weights; None: all of them. Weights that the
            step returns stay on the device, and with them their update.
    """
    stay = _staying(graph)
    moved = {
        task.index
        for task in graph.tasks
        if task.phase is Phase.UPDATE and (chosen is None or task.index in chosen) and stay.isdisjoint(task.writes)
    }
    touched = {block for index in moved for block in (*graph.tasks[index].reads, *graph.tasks[index].writes)}
    homes = {block for block in touched if graph.blocks[block].role in EXTERNAL_ROLES}
    tasks = (
        replace(task, on_host=True, moved_bytes=task.cpu_moved_bytes, host_bytes=0, workspace_bytes=0, launches=0)
        if task.index in moved
        else task
        for task in graph.tasks
    )
    blocks = (
        replace(block, host_location=HostLocation(block.index)) if block.index in homes else block
        for block in graph.blocks
    )
    return replace(graph, blocks=tuple(blocks), tasks=tuple(tasks))


def as_written(graph: TaskGraph, cost: CostModel) -> TaskGraph:
    """Return the annotated step as its program runs it, with its own recomputation and, behind it, the update in parts.

    For methods that leave recomputation to the program. `TaskGraph.plain` has the update as a whole. Another
    framework's graph has no program: its tasks are in its own order, and release each block after its last use.
    """
    written = graph.plain or _releasing(graph)
    blocks = _same_blocks(graph, written)
    tasks = [task for task in written.tasks if task.phase is not Phase.UPDATE]
    layers = list(written.layers)
    for part in (task for task in graph.tasks if task.phase is Phase.UPDATE):
        moved = rename_blocks(part, blocks)
        tasks.append(replace(moved, layer=len(layers), releases=()))
        layers.append(part.name)
    return join_convolution_backward(replace(written, tasks=numbered(tasks), layers=tuple(layers)), cost)


def _releasing(graph: TaskGraph) -> TaskGraph:
    """Return the graph in which the last task that uses a block, of those that precede the update, releases it."""
    last = {
        block: task.index
        for task in graph.tasks
        if task.phase is not Phase.UPDATE
        for block in (*task.reads, *task.writes)
    }
    released: dict[int, list[int]] = {}
    for block, index in last.items():
        if graph.blocks[block].is_transient:
            released.setdefault(index, []).append(block)
    tasks = tuple(replace(task, releases=tuple(released.get(task.index, ()))) for task in graph.tasks)
    return replace(graph, tasks=tasks)


def _same_blocks(graph: TaskGraph, other: TaskGraph) -> dict[int, int]:
    """Return the caller's blocks and weights' gradients in another graph of the step, by their index in this one."""
    named = {(block.role, block.name): block.index for block in other.blocks if block.role in EXTERNAL_ROLES}
    same = {block.index: named[block.role, block.name] for block in graph.blocks if (block.role, block.name) in named}
    of_other = dict(other.gradients)
    for name, value in graph.gradients:
        gradient = of_other[name]
        if value is not None and gradient is not None:
            same[value.block] = gradient.block
    return same


def mask_relu(graph: TaskGraph, cost: CostModel, layers: Container[int] | None = None) -> TaskGraph:
    """Make the backward of each ReLU read a one-byte mask instead of the ReLU's output (Layrub 4.2, Equation 7).

    The forward pass writes where the output is not positive; the backward pass sets the gradient to zero there, in
    place where no other task reads the incoming gradient. Without a reader, the output's memory is free for its
    gradient.

    Args:
        layers: those whose ReLUs are masked; None: all of `maskable_relus`.
    """
    masked = {
        layer: backward.block for layer, backward in maskable_relus(graph).items() if layers is None or layer in layers
    }
    rewriter = _MaskRewriter(graph, masked)
    for task in graph.tasks:
        rewriter.rewrite(task)
    return cost.annotate(replace(graph, blocks=tuple(rewriter.blocks), tasks=numbered(rewriter.tasks)))


def maskable_relus(graph: TaskGraph) -> dict[int, "MaskableRelu"]:
    """Return by layer the ReLUs whose backward pass can read a mask."""
    forward = {task.layer: task for task in graph.tasks if _is_forward_relu(task)}
    return {
        task.layer: MaskableRelu(forward[task.layer].writes[-1], task.index)
        for task in graph.tasks
        if is_backward_relu(task) and task.layer in forward and _can_mask(graph, forward[task.layer], task)
    }


@dataclass(frozen=True, slots=True)
class MaskableRelu:
    """A ReLU whose backward pass can read a mask: its output's block, and the task of its backward pass."""

    block: int
    backward: int


def _is_forward_relu(task: Task) -> bool:
    return task.kind is Kind.RELU and task.phase is Phase.FORWARD


def is_backward_relu(task: Task) -> bool:
    """Return whether a task reads only the signs of a ReLU's output."""
    is_threshold = task.call is None or task.call.operator == "aten.threshold_backward.default"
    return task.kind is Kind.RELU and task.phase is Phase.BACKWARD and is_threshold


def _can_mask(graph: TaskGraph, forward: Task, backward: Task) -> bool:
    """Return whether the backward reads the whole output in the layout that the mask will have."""
    if forward.writes[-1] not in backward.reads:
        return False
    if backward.call is None:
        return True
    gradient, output = backward.call.args[:2]
    fills = all(_bytes(value) == graph.blocks[value.block].size_bytes for value in (gradient, output))
    return fills and output == _written_value(forward) and gradient.stride == output.stride


def _bytes(value: Value) -> int:
    return torch.Size(value.shape).numel() * value.dtype.itemsize


def _staying(graph: TaskGraph) -> set[int]:
    """Return the blocks that a step returns, that it may not move, and that collectives change between devices.

    What an update of them writes, their states, stays with them.
    """
    leaves = tree_leaves((graph.output, graph.objects_after, graph.loss))
    weights = {block.index for block in graph.blocks if graph.weights_stay and block.role is Role.WEIGHT}
    exchanged = {block for task in graph.tasks if task.collective for block in task.writes}
    stay = weights | exchanged | {value.block for value in leaves if isinstance(value, Value)}
    updates = (task.writes for task in graph.tasks if task.phase is Phase.UPDATE)
    return stay.union(*(writes for writes in updates if not stay.isdisjoint(writes)))


class _MaskRewriter:
    def __init__(self, graph: TaskGraph, masked: dict[int, int]) -> None:
        self.graph = graph
        self.masked = masked
        self.blocks: list[Block] = list(graph.blocks)
        self.tasks: list[Task] = []
        self.masks: dict[int, int] = {}  # layer -> block
        self.renamed: dict[int, int] = {}
        self.latest: dict[int, int] = {}  # block -> the last one that was renamed to it

    def rewrite(self, task: Task) -> None:
        task = rename_blocks(task, self.renamed)
        if is_backward_relu(task) and task.layer in self.masks:
            self.tasks.append(self._backward(task, self.masks[task.layer]))
            return
        self.tasks.append(task)
        if _is_forward_relu(task) and task.layer in self.masked:
            self._add_mask(task)

    def _add_mask(self, relu: Task) -> None:
        output = self.blocks[self.masked[relu.layer]]
        name = f"{self.graph.layers[relu.layer]}:mask"
        mask = self.masks[relu.layer] = len(self.blocks)
        call, dtype = None, torch.float32
        if relu.call is not None:
            value = _written_value(relu)
            stored = replace(value, block=mask, dtype=torch.bool)
            call, dtype = Call("aten.le.Scalar", (value, 0), (), (stored,)), value.dtype
        size_bytes = output.size_bytes // dtype.itemsize
        self.blocks.append(Block(mask, name, size_bytes, Role.ACTIVATION, relu.layer))
        self.tasks.append(
            replace(
                relu,
                name=name,
                reads=(output.index,),
                writes=(mask,),
                creates=(mask,),
                moved_bytes=output.size_bytes + size_bytes,
                call=call,
            )
        )

    def _backward(self, task: Task, mask: int) -> Task:
        reads = tuple(mask if block == self.masked[task.layer] else block for block in task.reads)
        if task.call is None:
            return replace(task, reads=reads)
        gradient, output = task.call.args[:2]
        [result] = task.call.outputs
        assert result is not None
        condition = replace(output, block=mask, dtype=torch.bool)
        if self._dies_here(task, gradient, result):
            self.renamed[result.block] = gradient.block
            self.latest[gradient.block] = result.block
            call = Call("aten.masked_fill_.Scalar", (gradient, condition, 0), (), (None,))
            return replace(task, reads=reads, writes=(gradient.block,), creates=(), call=call)
        call = Call("aten.where.ScalarSelf", (condition, 0, gradient), (), (result,))
        return replace(task, reads=reads, call=call)

    def _dies_here(self, task: Task, gradient: Value, result: Value) -> bool:
        last_use = self.graph.last_use[self.latest.get(gradient.block, gradient.block)]
        is_result = self.blocks[result.block].role in RESULT_ROLES
        return last_use == task.index and self.blocks[gradient.block].role is Role.GRADIENT and not is_result


def _written_value(relu: Task) -> Value:
    assert relu.call is not None
    [output] = relu.call.outputs
    value = output if output is not None else relu.call.args[0]
    assert isinstance(value, Value)
    return value


def join_convolution_backward(graph: TaskGraph, cost: CostModel) -> TaskGraph:
    """Compute a convolution's weight and data gradient in one call, as eager PyTorch does.

    For methods that do not need the activation's memory between the two: one dispatch less, the same bits.
    """
    tasks: list[Task] = []
    for task in graph.tasks:
        position = _weight_half(tasks, task)
        tasks.append(task if position is None else _joined(tasks.pop(position), task))
    return cost.annotate(replace(graph, tasks=numbered(tasks)))


def are_halves(weight: Task, data: Task) -> bool:
    """Return whether two tasks are the weight and the data gradient of one convolution, one call in plain PyTorch."""
    return _mask(data) == (True, False, False) and _are_halves(weight, data)


def _weight_half(before: list[Task], data: Task) -> int | None:
    """Return the position of the weight gradient that belongs to a data gradient, if it can be computed this late."""
    if _mask(data) != (True, False, False):
        return None
    for position in reversed(range(len(before))):
        weight = before[position]
        if weight.layer != data.layer or weight.phase != data.phase:
            return None
        if _are_halves(weight, data):
            overtaken = any(
                {*weight.reads, *weight.writes} & {*task.writes} or {*weight.writes} & {*task.reads}
                for task in before[position + 1 :]
            )
            return None if overtaken else position
    return None


def _mask(task: Task) -> tuple[bool, ...]:
    """Return whether a convolution's backward computes gradients of input, weight and bias; empty for others."""
    is_backward = task.call is not None and task.call.operator == "aten.convolution_backward.default"
    return tuple(task.call.args[-1]) if task.call and is_backward else ()


def _are_halves(weight: Task, data: Task) -> bool:
    """Return whether two tasks are the weight and the data gradient of one convolution."""
    assert data.call is not None
    if weight.call is None or _mask(weight)[:1] != (False,):
        return False
    return (weight.call.args[0], weight.call.args[2]) == (data.call.args[0], data.call.args[2])


def _joined(weight: Task, data: Task) -> Task:
    assert weight.call is not None and data.call is not None
    mask = (True, *weight.call.args[-1][1:])
    return replace(
        weight,
        reads=tuple(dict.fromkeys((*weight.reads, *data.reads))),
        writes=(*data.writes, *weight.writes),
        creates=(*data.creates, *weight.creates),
        operations=weight.operations + data.operations,
        moved_bytes=weight.moved_bytes + data.moved_bytes,
        gradient_of=data.gradient_of,
        releases=data.releases,
        call=replace(
            weight.call, args=(*weight.call.args[:-1], mask), outputs=(data.call.outputs[0], *weight.call.outputs[1:])
        ),
    )
