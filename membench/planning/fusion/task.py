"""One task in place of several: its call has their calls as a program."""

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from membench.core.graph.call import Call, Value, values_in
from membench.core.graph.fused_calls import FusedCalls, fused_call, renumbered
from membench.core.graph.strides import view_of
from membench.core.graph.task_graph import GradientOf, Kind, Task

_KINDS = (Kind.BATCH_NORM, Kind.NORMALIZATION, Kind.LOSS, Kind.SCALE, Kind.ACTIVATION, Kind.ADD)
"""Of these, the first that a group has is its kind.

A ReLU or dropout within a group is not one that a method can replace.
"""


def is_expressible(tasks: Sequence[Task]) -> bool:
    """Return whether a call can express what tasks do to values.

    What they read of a tensor that they made is a view of it, and what they update is the whole of it.
    """
    made: dict[int, Value] = {}
    taken: defaultdict[int, set[Value]] = defaultdict(set)
    written: set[int] = set()
    for task in tasks:
        assert task.call is not None
        updated = set(task.writes) - set(task.creates)
        for value in values_in((task.call.args, task.call.kwargs)):
            if value.block not in made:
                taken[value.block].add(value)
            elif view_of(made[value.block], value) is None or (value.block in updated and value != made[value.block]):
                return False
        written |= updated
        made.update((value.block, value) for value in task.call.outputs if value is not None)
    return all(len(taken[block]) == 1 for block in written - made.keys())


class _Calls:
    """The calls of tasks, with their memories numbered.

    Attributes:
        inputs: values that they take.
        made: values that they make, by block.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.inputs: list[Value] = []
        self.made: dict[int, Value] = {}
        self._numbers: dict[object, Value] = {}
        self._calls = [self._renumbered(task) for task in tasks]

    def fused(self, outputs: Iterable[Value], dead: Set[int]) -> FusedCalls:
        """Return the calls, which may overwrite inputs in blocks that are dead afterwards."""
        numbers = self._numbers
        return FusedCalls(
            tuple(self._calls),
            tuple(numbers[value] for value in self.inputs),
            tuple(numbers[value].block for value in self.inputs if value.block in dead),
            tuple(numbers[value.block].block for value in outputs),
        )

    def _renumbered(self, task: Task) -> Call:
        call = task.call
        assert call is not None, "only tasks with calls are fused"
        arguments = renumbered(replace(call, outputs=()), self._number)
        for value in call.outputs:
            if value is not None:
                self.made[value.block] = value
                self._numbers[value.block] = replace(value, block=len(self._numbers))
        return replace(arguments, outputs=tuple(value and self._number(value) for value in call.outputs))

    def _number(self, value: Value) -> Value:
        if value.block in self.made:
            return replace(value, block=self._numbers[value.block].block)
        if value not in self._numbers:
            self._numbers[value] = replace(value, block=len(self._numbers), offset=0)
            self.inputs.append(value)
        return self._numbers[value]


def fused_task(tasks: Sequence[Task], kept: set[int], dead: set[int]) -> Task:
    """Return the task that does what tasks do one after another.

    Args:
        kept: blocks that other tasks or the caller use.
        dead: blocks that no task uses afterwards.
    """
    calls = _Calls(tasks)
    inputs, outputs = calls.inputs, [value for block, value in calls.made.items() if block in kept]
    updated = {block for task in tasks for block in task.writes} - calls.made.keys()
    creates = tuple(value.block for value in outputs)
    updates = [block for block in dict.fromkeys(value.block for value in inputs) if block in updated - dead]
    moved_bytes = sum(value.moved_bytes for value in (*inputs, *outputs))
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
        workspace_bytes=0,  # what kernels of torch hold, the compiled one has in registers
        gradient_of=_gradient_of(tasks),
        call=fused_call(calls.fused(outputs, updated & dead), inputs, outputs),
    )


def _kind(tasks: Sequence[Task]) -> Kind:
    kinds = {task.kind for task in tasks}
    return next((kind for kind in _KINDS if kind in kinds), Kind.OTHER)


def _gradient_of(tasks: Sequence[Task]) -> GradientOf | None:
    halves = {task.gradient_of for task in tasks}
    return halves.pop() if len(halves) == 1 else GradientOf.DATA
