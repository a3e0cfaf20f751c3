"""Runs of tasks as one Python function: the tasks and the frees between them, without calls around each.

    tensors[12] = tensors[11].as_strided((8, 64), (64, 1), 0)      a view of what the run has made
    if tensors[3] is None: view(3)                                 of what was there before
    tensors[13] = constant7(tensors[12], tensors[3], (1, 1))       an operator
    owners[9] = tensors[13]
    tensors[11] = tensors[12] = owners[8] = None                   a free
    if spaces: close_space(8)

A step of small operators takes about a tenth less time than with an interpreted loop. The state between the lines is
that of `DeviceTensors`, so that a run may be followed by any other instruction, or by an error.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from membench.backends.calls.calls import BoundCall, BoundCalls
from membench.core.graph.call import Value
from membench.core.graph.schedule import Compute, Free
from membench.core.graph.task_graph import Task


class RunSource:
    """Writes the source of a run.

    Args:
        tasks: the graph's tasks.
        calls: the tasks' calls; None where something else than an operator runs.
        bound: the values of the calls.
        poisons: blocks are overwritten before they are freed.
    """

    def __init__(
        self, tasks: Sequence[Task], calls: Sequence[BoundCall | None], bound: BoundCalls, *, poisons: bool
    ) -> None:
        self._tasks, self._calls, self._bound, self._poisons = tasks, calls, bound, poisons
        self._lines: list[str] = []
        self._present: set[int] = set()  # numbers of values whose tensors are there for certain
        self._made: dict[int, int] = {}  # the number of the value that an operator of this run returned, by block

    def compiled(self, instructions: Iterable[Compute | Free], names: Mapping[str, Any]) -> Callable[[], None]:
        """Return a function that does these instructions.

        Args:
            names: what the source refers to in addition to the calls' names.
        """
        for instruction in instructions:
            if isinstance(instruction, Compute):
                self._compute(self._tasks[instruction.task])
            else:
                self._free(instruction.block)
        parameters = ", ".join(f"{name}={name}" for name in names)
        source = "\n    ".join((f"def run({parameters}):", *self._lines))
        scope = {**self._bound.names, **names}
        exec(compile(source, "<run of tasks>", "exec"), scope)
        run: Callable[[], None] = scope.pop("run")  # a function in its own scope would live until a collection
        return run

    def _compute(self, task: Task) -> None:
        call = self._calls[task.index]
        if call is None:
            self._lines.append(f"take({task.index})")
            return
        self._lines += [f"allocate({block})" for block in call.filled]
        for number in call.numbers:
            if number not in self._present:
                self._lines.append(self._view(number))
                self._present.add(number)
        assert task.call is not None
        self._lines += call.statements(len(task.call.outputs))
        for _, number, block in call.outputs:
            self._made[block] = number
            self._present.add(number)

    def _view(self, number: int) -> str:
        value = self._bound.values[number]
        made = self._made.get(value.block)
        if made is not None and _is_strided_view(value, self._bound.values[made]):
            return f"tensors[{number}] = tensors[{made}].as_strided({value.shape}, {value.stride}, {value.offset})"
        return f"if tensors[{number}] is None: view({number})"

    def _free(self, block: int) -> None:
        if self._poisons:
            self._lines.append(f"poison({block})")
        numbers = self._bound.values_of_block[block]
        self._lines.append("".join(f"tensors[{number}] = " for number in numbers) + f"owners[{block}] = None")
        self._lines.append(f"if spaces: close_space({block})")
        self._present.difference_update(numbers)
        self._made.pop(block, None)


def _is_strided_view(value: Value, made: Value) -> bool:
    """Return whether a value has other strides than the one that an operator returned, and nothing else."""
    is_lazy = value.conjugated or value.negated or made.conjugated or made.negated
    return value.dtype is made.dtype and made.offset == 0 and not is_lazy
