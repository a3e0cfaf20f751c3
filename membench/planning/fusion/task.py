"""One task in place of several: its call has their calls as a program."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from membench.core.call import Value, values_in
from membench.core.program import Program, fused_call, renumbered
from membench.core.strides import view_of
from membench.core.task_graph import GradientOf, Kind, Task

_KINDS = (Kind.BATCH_NORM, Kind.NORMALIZATION, Kind.LOSS, Kind.SCALE, Kind.ACTIVATION, Kind.ADD)
"""Of these, the first that a group has is its kind. A ReLU or dropout within a group is not one that a method can replace."""


def is_expressible(tasks: Sequence[Task]) -> bool:
    """Return whether the values of what tasks make are views of the tensor that was made, and those that they update the whole of it."""
    made: dict[int, Value] = {}
    taken: defaultdict[int, set[Value]] = defaultdict(set)
    written: set[int] = set()
    for task in tasks:
        assert task.call is not None
        updated = set(task.writes) - set(task.creates)
        for value in values_in((task.call.args, task.call.kwargs)):
            if value.block not in made:
                taken[value.block].add(value)
            elif view_of(made[value.block], value) is None or (
                value.block in updated and value != made[value.block]
            ):
                return False
        written |= updated
        made.update((value.block, value) for value in task.call.outputs if value is not None)
    return all(len(taken[block]) == 1 for block in written - made.keys())


def fused_task(tasks: Sequence[Task], kept: set[int], dead: set[int]) -> Task:
    """Return the task that does what tasks do one after another.

    Args:
        kept: blocks that other tasks or the caller use.
        dead: blocks that no task uses afterwards.
    """
    numbers: dict[object, Value] = {}
    inputs: list[Value] = []
    made: dict[int, Value] = {}

    def of(value: Value) -> Value:
        if value.block in made:
            base = numbers[value.block].block
            return replace(value, block=base)
        if value not in numbers:
            numbers[value] = replace(value, block=len(numbers), offset=0)
            inputs.append(value)
        return numbers[value]

    calls = []
    for task in tasks:
        assert task.call is not None
        arguments = renumbered(replace(task.call, outputs=()), of)
        for value in task.call.outputs:
            if value is not None:
                made[value.block] = value
                numbers[value.block] = replace(value, block=len(numbers))
        calls.append(replace(arguments, outputs=tuple(value and of(value) for value in task.call.outputs)))
    outputs = [value for block, value in made.items() if block in kept]
    updated = {block for task in tasks for block in task.writes} - made.keys()
    scratch = tuple(numbers[value].block for value in inputs if value.block in updated & dead)
    program = Program(
        tuple(calls),
        tuple(numbers[value] for value in inputs),
        scratch,
        tuple(numbers[value.block].block for value in outputs),
    )
    creates = tuple(value.block for value in outputs)
    updates = [block for block in dict.fromkeys(value.block for value in inputs) if block in updated - dead]
    moved_bytes = sum(value.extent_bytes for value in (*inputs, *outputs))
    last = tasks[-1]
    return replace(
        last,
        name=last.name if len(tasks) == 1 else f"{last.name}:fused{len(tasks)}",
        kind=_kind(tasks),
        layer=max(task.layer for task in tasks),
        reads=tuple(dict.fromkeys(value.block for value in inputs)),
        writes=(*updates, *creates),
        creates=creates,
        operations=sum(task.operations for task in tasks),
        moved_bytes=moved_bytes,
        gradient_of=_gradient_of(tasks),
        call=fused_call(program, inputs, outputs),
    )


def _kind(tasks: Sequence[Task]) -> Kind:
    kinds = {task.kind for task in tasks}
    return next((kind for kind in _KINDS if kind in kinds), Kind.OTHER)


def _gradient_of(tasks: Sequence[Task]) -> GradientOf | None:
    halves = {task.gradient_of for task in tasks}
    return halves.pop() if len(halves) == 1 else GradientOf.DATA
