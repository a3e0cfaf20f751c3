"""The step as plain PyTorch runs it: every task in its order, and after each the blocks whose memory is given back.

A program may hold the last step's output and gradients for a part of this one (`with_held`).

The recording differs from plain PyTorch in three ways, which are undone here:

- On tensors without data autograd adds gradients that meet, and those of an indexed tensor, into new memory. On tensors
  with data it adds them to the first one in place if nothing else refers to it. That one dies with the sum then.
- Python's numbers are not tensors. On the CPU autograd keeps some of them as tensors.
- Dropout is ``native_dropout``. On the CPU plain PyTorch keeps a mask of numbers in place of bytes.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from membench.capture.lifetimes import KeptNumber
from membench.capture.passes import IN_PLACE, Zeros, mark_partial_gradients
from membench.capture.recording import Recording
from membench.core.graph.call import Call, ShapeOf, Value, values_in
from membench.core.graph.changed_tasks import changed, rename_blocks
from membench.core.graph.task_graph import Block, Kind, Phase, Role, Task


def plain_tasks(recording: Recording, blocks: list[Block]) -> tuple[list[Task], dict[int, int]]:
    """Return the tasks, with their `releases`, and the blocks that take the place of recorded ones; change `blocks`."""
    mark_partial_gradients(recording.tasks, blocks)
    tasks, renamed = _with_sums_in_place(recording, blocks)
    if recording.on_cpu:
        tasks = _with_kept_numbers(tasks, recording.numbers, blocks)
        tasks = [
            part for task in tasks for part in _with_mask_of_numbers(task, blocks, task.index in recording.stopped)
        ]
    return tasks, renamed


def with_held(
    tasks: list[Task], recording: Recording, blocks: list[Block], *, holds_gradients: bool
) -> tuple[list[Task], frozenset[int]]:
    """Return the tasks of a program that holds results, and the blocks of its last step's; change `blocks`.

    ``output = module(*inputs)`` gives the last step's back where this one's is there: behind the forward pass.
    ``zero_grad()`` behind the loss frees its gradients before the backward pass.

    Args:
        recording: the outputs that it holds have no releases among the tasks.
    """
    outputs = [index for index in sorted(recording.held) if blocks[index].is_transient]
    gradients = [block.index for block in blocks if block.role is Role.WEIGHT_GRADIENT] if holds_gradients else []
    for index in outputs:
        blocks[index] = replace(blocks[index], role=Role.OUTPUT)
    held: set[int] = set()
    for of, before in ((outputs, (Phase.FORWARD,)), (gradients, (Phase.FORWARD, Phase.LOSS))):
        if not of:
            continue
        last_steps = [replace(blocks[index], index=len(blocks) + place) for place, index in enumerate(of)]
        blocks += [replace(each, name=f"{each.name}:last step's", role=Role.HELD) for each in last_steps]
        made = [each.index for each in last_steps]
        end = next((place for place, task in enumerate(tasks) if task.phase not in before), len(tasks)) - 1
        tasks = [*tasks[:end], replace(tasks[end], releases=(*tasks[end].releases, *made)), *tasks[end + 1 :]]
        held.update(made)
    return tasks, frozenset(held)


def _with_kept_numbers(tasks: list[Task], numbers: tuple[KeptNumber, ...], blocks: list[Block]) -> list[Task]:
    """Return the tasks with one more for each number that autograd keeps, where the memory of its tensor is taken."""
    made = defaultdict(list)
    for number in (each for each in numbers if each.made < each.released):
        user = tasks[number.made - 1]
        block = Block(len(blocks), f"{user.name}:number", number.dtype.itemsize, Role.ACTIVATION, user.layer)
        blocks.append(block)
        value = Value(block.index, number.dtype, (), (), 0)
        call = Call("aten.scalar_tensor.default", (0,), (("dtype", number.dtype),), (value,))
        written = (block.index,)
        task = Task(-1, block.name, Kind.OTHER, user.phase, user.layer, (), written, written, call=call)
        made[number.made - 1].append(task)
        last = tasks[number.released - 1]
        tasks[number.released - 1] = replace(last, releases=(*last.releases, block.index))
    return [each for index, task in enumerate(tasks) for each in (task, *made[index])]


def _with_sums_in_place(recording: Recording, blocks: list[Block]) -> tuple[list[Task], dict[int, int]]:
    released = defaultdict(list)
    for position, block in recording.releases:
        released[position - 1].append(block)
    renamed: dict[int, int] = {}
    tasks, zeros = [], Zeros()
    for recorded in recording.tasks:
        task = rename_blocks(recorded, renamed)
        releases = [renamed.get(block, block) for block in released[recorded.index]]
        first = _first_summand(task, recording.sums, zeros)
        zeros.follow(task)
        if first is not None and first.block in releases:
            [output] = task.creates
            releases.remove(first.block)
            renamed[output] = first.block
            role, name = blocks[output].role, blocks[output].name
            blocks[first.block] = replace(blocks[first.block], role=role, name=name)
            blocks[output] = replace(blocks[output], role=Role.GRADIENT)
            assert task.call is not None
            call = replace(task.call, operator=IN_PLACE[task.call.operator], outputs=(None,))
            task = changed(task, writes=(first.block,), creates=(), call=call)
        tasks.append(changed(task, releases=tuple(releases)) if releases else task)
    return tasks, renamed


def _first_summand(task: Task, sums: frozenset[int], zeros: Zeros) -> Value | None:
    """Return the gradient to whose memory autograd adds others, if nothing else refers to it."""
    call = task.call
    if (
        task.phase is not Phase.BACKWARD
        or task.is_recomputed
        or call is None
        or call.operator not in IN_PLACE
        or not zeros.allow(call)
    ):
        return None
    if call.operator == "aten.add.Tensor" and task.index not in sums:
        return None
    first, output = call.args[0], call.outputs[0]
    if not isinstance(first, Value) or output is None:
        return None
    has_layout = replace(first, block=output.block) == output
    is_read_twice = any(value.block == first.block for value in values_in(call.args[1:]))
    return first if has_layout and not is_read_twice else None


def _with_mask_of_numbers(task: Task, blocks: list[Block], is_stopped: bool) -> Iterator[Task]:
    """Yield the calls of a dropout on the CPU, or any other task as it is.

    Args:
        is_stopped: autograd has saved the mask, and what follows is not run.
    """
    call = task.call
    if call is not None and call.operator == "aten.native_dropout_backward.default":
        gradient, mask, _ = call.args
        yield replace(task, call=_product(gradient, _numbers(mask, gradient), *call.outputs))
    elif call is not None and call.operator == "aten.native_dropout.default":
        yield from _dropout(task, call, blocks, is_stopped)
    else:
        yield task


def _dropout(task: Task, call: Call, blocks: list[Block], is_stopped: bool) -> Iterator[Task]:
    activation, probability, _ = call.args
    output, mask = call.outputs
    assert output is not None and mask is not None
    numbers = _numbers(mask, activation)
    block = blocks[mask.block]
    blocks[mask.block] = replace(block, size_bytes=block.size_bytes * activation.dtype.itemsize)
    part = replace(task, reads=(mask.block,), writes=(mask.block,), creates=(), random=False, releases=())
    empty = Call("aten.empty_like.default", (ShapeOf(activation),), (), (numbers,))
    yield replace(part, reads=(), creates=(mask.block,), call=empty)
    drawn = Call("aten.bernoulli_.float", (numbers, 1 - probability), (), (None,))
    yield replace(part, random=True, call=drawn)
    scaled = replace(part, call=Call("aten.div_.Scalar", (numbers, 1 - probability), (), (None,)))
    if is_stopped:
        yield replace(scaled, releases=tuple(each for each in task.releases if each != output.block))
        return
    yield scaled
    made, product = (output.block,), _product(activation, numbers, output)
    reads = (*task.reads, mask.block)
    yield replace(task, reads=reads, writes=made, creates=made, random=False, call=product)


def _numbers(mask: Value, like: Value) -> Value:
    return replace(mask, dtype=like.dtype)


def _product(one: Value, other: Value, output: Value | None) -> Call:
    return Call("aten.mul.Tensor", (one, other), (), (output,))
