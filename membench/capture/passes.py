"""Passes over a recorded step that keep its results bit for bit."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

from membench.core.graph.call import Call, Value, values_in
from membench.core.graph.changed_tasks import rename_blocks
from membench.core.graph.task_graph import (
    EXTERNAL_ROLES,
    RESULT_ROLES,
    WEIGHT_GRADIENT_ROLES,
    Block,
    GradientOf,
    Kind,
    Phase,
    Role,
    Task,
)


def drop_unused(tasks: list[Task], blocks: list[Block]) -> list[Task]:
    """Drop tasks whose outputs are never read, such as batch norm's empty reserve on the CPU."""
    needed = {block.index for block in blocks if block.role in RESULT_ROLES | EXTERNAL_ROLES}
    kept: list[Task] = []
    for task in reversed(tasks):
        if task.random or needed.intersection(task.writes):
            needed.update(task.reads)
            kept.append(task)
    return kept[::-1]


def mark_partial_gradients(tasks: list[Task], blocks: list[Block]) -> None:
    """Mark by role the summands of the gradient of a weight that several layers or time steps share."""
    readers = Counter(block for task in tasks for block in task.reads)
    for task in reversed(tasks):
        if task.creates and blocks[task.creates[0]].role in WEIGHT_GRADIENT_ROLES:
            for block in _summands(task):
                if blocks[block].role is Role.GRADIENT and readers[block] == 1:
                    blocks[block] = replace(blocks[block], role=Role.PARTIAL_GRADIENT)


_INTO_ZEROS = {
    "aten.index_put.default": "aten.index_put_.default",
    "aten.scatter_add.default": "aten.scatter_add_.default",
    "aten.scatter.src": "aten.scatter_.src",
    "aten.index_add.default": "aten.index_add_.default",
    "aten.put.default": "aten.put_.default",
}
IN_PLACE = {"aten.add.Tensor": "aten.add_.Tensor", **_INTO_ZEROS}
"""Sums of gradients, each with the operator that overwrites the first summand.

Autograd adds the gradient of an indexed tensor, of
``gather``, ``index_select``, ``take`` and ``max`` to zeros in place, except on tensors without data
(`areAnyTensorSubclassLike` in PyTorch's ``FunctionsManual.cpp`` and ``TensorAdvancedIndexing.cpp``)."""
_ZEROS = {"aten.new_zeros.default", "aten.zeros_like.default", "aten.zeros.default"}


class Zeros:
    """Blocks that contain zeros, while tasks are followed one after another."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()

    def follow(self, task: Task) -> None:
        """Go on behind a task."""
        self._blocks.difference_update(task.writes)
        if task.call is not None and task.call.operator in _ZEROS:
            self._blocks.update(task.creates)

    def allow(self, call: Call) -> bool:
        """Return whether plain PyTorch runs an `IN_PLACE` call in place: into contents other than zeros it copies."""
        return call.operator not in _INTO_ZEROS or call.args[0].block in self._blocks


def _is_sum(task: Task) -> bool:
    call = task.call
    is_backward = task.phase is Phase.BACKWARD and not task.is_recomputed
    return is_backward and call is not None and call.operator in IN_PLACE and not call.kwargs


def _summands(task: Task) -> tuple[int, ...]:
    """Return the blocks that a sum of gradients adds up, without those that only some elements are taken from."""
    if not _is_sum(task):
        return ()
    assert task.call is not None
    first, second = task.call.args[:2]
    return tuple(value.block for value in (first, second) if isinstance(value, Value))


def weight_gradient_first(tasks: list[Task], blocks: list[Block]) -> list[Task]:
    """Within each layer's backward, move tasks that lead to weight gradients ahead of the data gradient.

    Layrub, Section 3.1: both read the incoming gradient, but only the weight gradient reads the stored
    activation, whose memory is free after it.
    """
    ordered: list[Task] = []
    for (_, phase), group in groupby(tasks, lambda task: (task.layer, task.phase)):
        run = list(group)
        ordered.extend(_order_run(run, blocks) if phase is Phase.BACKWARD else run)
    return ordered


def _order_run(run: list[Task], blocks: list[Block]) -> list[Task]:
    wanted: set[int] = set()
    first: set[int] = set()
    for task in reversed(run):
        roles = {blocks[block].role for block in task.creates}
        if (roles and roles <= WEIGHT_GRADIENT_ROLES) or wanted.intersection(task.writes):
            first.add(task.index)
            wanted.update(task.reads)
    leading = [
        replace(t, gradient_of=GradientOf.WEIGHT) if {blocks[b].role for b in t.creates} <= WEIGHT_GRADIENT_ROLES else t
        for t in run
        if t.index in first
    ]
    following = [task for task in run if task.index not in first]
    # An in-place update in the following tasks must not move behind a reader of the old contents.
    written_later = {block for task in following for block in task.writes}
    # Random numbers are drawn in the order of the recording.
    if any(written_later.intersection(task.reads) or task.random for task in leading):
        return run
    return leading + following


def accumulate_in_place(tasks: list[Task], blocks: list[Block]) -> list[Task]:
    """Add gradients that meet at a branch to the first of them in place, as eager autograd does.

    So the gradient of a shared weight takes one block from its first use on, for any number of uses.
    """
    last_use: dict[int, int] = {}
    for position, task in enumerate(tasks):
        for block in (*task.reads, *task.writes):
            last_use[block] = position
    renamed: dict[int, int] = {}
    results: dict[int, int] = {}  # block that becomes a weight's gradient -> that gradient's block
    zeros = Zeros()
    result = []
    for position, task in enumerate(tasks):
        task = rename_blocks(task, renamed) if renamed else task
        target = _accumulation_target(task, blocks, zeros)
        zeros.follow(task)
        if target is not None and last_use[target.block] == position:
            assert task.call is not None
            [output] = task.creates
            renamed[output] = target.block
            if blocks[output].role in RESULT_ROLES:
                results[target.block] = output
            last_use[target.block] = last_use.get(output, position)
            task = replace(
                task,
                writes=(target.block,),
                creates=(),
                call=replace(task.call, operator=IN_PLACE[task.call.operator], outputs=(None,)),
            )
        result.append(task)
    return [rename_blocks(task, results) for task in result] if results else result


def _accumulation_target(task: Task, blocks: list[Block], zeros: Zeros) -> Value | None:
    """Return the first summand if the sum may overwrite it."""
    call = task.call
    if not _is_sum(task) or call is None or not zeros.allow(call):
        return None
    first, output = call.args[0], call.outputs[0]
    others = values_in(call.args[1:])
    if not isinstance(first, Value) or not others or output is None:
        return None
    block = blocks[first.block]
    same_layout = (first.dtype, first.shape, first.stride, first.offset) == (
        output.dtype, output.shape, output.stride, output.offset
    )  # fmt: skip
    may_overwrite = block.role not in EXTERNAL_ROLES | RESULT_ROLES
    if not (same_layout and may_overwrite and block.size_bytes == blocks[output.block].size_bytes):
        return None
    if blocks[output.block].role in RESULT_ROLES and block.role is not Role.PARTIAL_GRADIENT:
        return None
    return first if all(value.block != first.block for value in others) else None


def accumulate_over_micro_batches(
    tasks: list[Task],
    blocks: list[Block],
    results: list[Value],
    loss_scale: float,
    due: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, Value]:
    """Add each result, as soon as it is complete, to an accumulator that lives as long as the step.

    Appends the accumulators' blocks, inserts the additions, and returns the accumulators by the results' blocks. A
    micro-batch's gradient can then be freed like any other block (moDNN 5.1; there cuDNN adds while it computes).

    Args:
        results: gradients of weights, and the loss.
        loss_scale: the loss's factor in its sum; the gradients have been computed with it.
        due: by a gradient's block, the number of recorded tasks before autograd adds it, in plain PyTorch.
    """
    complete = {block: position for position, task in enumerate(tasks) for block in task.writes}
    position_of = {task.index: position for position, task in enumerate(tasks)}
    last_use = {block: position for position, task in enumerate(tasks) for block in (*task.reads, *task.writes)}
    additions: defaultdict[int, list[Task]] = defaultdict(list)
    accumulators = {}
    for value in results:
        result = blocks[value.block]
        is_loss = result.role is Role.LOSS
        blocks[result.index] = replace(result, role=Role.ACTIVATION if is_loss else Role.PARTIAL_GRADIENT)
        accumulator = replace(
            result,
            index=len(blocks),
            name=f"{result.name}:accumulated",
            role=Role.ACCUMULATED,
            layer=-1,
            # some losses keep the memory of the elements that they reduce
            size_bytes=value.extent_bytes if is_loss else result.size_bytes,
        )
        blocks.append(accumulator)
        accumulators[value.block] = target = replace(value, block=accumulator.index)
        made_by = tasks[complete[value.block]]
        position = position_of[due[value.block] - 1] if value.block in due else complete[value.block]
        scale = loss_scale if is_loss else None
        addition = _addition(made_by, target, value, accumulator.size_bytes, scale)
        if last_use[value.block] <= position:
            addition = replace(addition, releases=(value.block,))
        additions[position].append(addition)
    tasks[:] = [each for position, task in enumerate(tasks) for each in (task, *additions[position])]
    return accumulators


def _addition(after: Task, target: Value, value: Value, size_bytes: int, loss_scale: float | None) -> Task:
    """Return the task that adds a gradient, or the loss times its scale, to its accumulator."""
    kwargs = () if loss_scale is None else (("alpha", loss_scale),)
    return Task(
        index=-1,
        name=f"{after.name}:accumulate",
        kind=Kind.OTHER,
        phase=after.phase,
        layer=after.layer,
        reads=(target.block, value.block),
        writes=(target.block,),
        creates=(),
        operations=size_bytes // value.dtype.itemsize,
        moved_bytes=3 * size_bytes,
        gradient_of=GradientOf.WEIGHT if loss_scale is None else None,
        call=Call("aten.add_.Tensor", (target, value), kwargs, (None,)),
    )
