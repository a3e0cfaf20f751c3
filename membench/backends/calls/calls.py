"""Calls of a graph as Python source: their values are numbered, and their operators and other arguments have names.

Source is compiled once, because looking up arguments one by one takes as long as a small operator.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from membench.backends.calls.kernels import find_kernel
from membench.core.graph.call import Call, ShapeOf, Value, resolve_operator, values_in
from membench.core.graph.collective import GroupOf
from membench.core.graph.task_graph import Block, Task
from membench.core.libraries.torch_internals import (
    OpOverload,
    operator_function,
    operator_schema,
    suggest_memory_format,
)


@dataclass(slots=True)
class BoundCall:
    """A call whose values are numbered.

    Attributes:
        expression: its source, in which ``tensors`` holds the tensors by those numbers.
        invoke: takes a list or dict of tensors by those numbers.
        numbers: numbers of the values that it reads.
        filled: blocks that the task creates and the operator fills as arguments.
        outputs: position, number of the value and block of each output that is kept; of several in a block the one at
            its start comes last, and owns it.
        is_single: the operator returns its only output, not a tuple or list.
    """

    expression: str
    invoke: Callable[[Any], Any]
    numbers: tuple[int, ...]
    filled: tuple[int, ...]
    outputs: tuple[tuple[int, int, int], ...]
    is_single: bool

    def statements(self, positions: int) -> list[str]:
        """Return source that runs the call and keeps its outputs as tensors and as the owners of their blocks.

        Args:
            positions: the number of the operator's outputs.
        """
        targets = ["_"] * positions
        for position, number, _ in self.outputs:
            targets[position] = f"tensors[{number}]"
        if not self.outputs:
            return [self.expression]
        lines = [f"{targets[0] if self.is_single else ''.join(f'{each}, ' for each in targets)}= {self.expression}"]
        lines += [f"owners[{block}] = tensors[{number}]" for _, number, block in self.outputs]
        return [*lines, "_ = None"] if "_" in targets else lines


class BoundCalls:
    """The values of a graph's calls, numbered, and names in the calls' source.

    Args:
        blocks: the graph's blocks.
        device: the device of created and prefetched blocks.
        groups: process groups by axis, of the calls that take one.

    Attributes:
        values: by number.
        values_of_block: numbers by block.
        names: what the source refers to.
    """

    def __init__(
        self, blocks: tuple[Block, ...], device: torch.device, groups: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.values: list[Value] = []
        self.values_of_block: list[list[int]] = [[] for _ in blocks]
        self.names: dict[str, Any] = {}
        self._numbers: dict[Value, int] = {}
        self._device = device
        self._groups = groups

    def bind(self, task: Task) -> BoundCall:
        """Return a task's call with its values numbered."""
        call = task.call
        assert call is not None, f"task {task.name} can only be simulated"
        numbers: list[int] = []
        positional = [self._expression(call, argument, numbers) for argument in call.args]
        keyword = [f"{name}={self._expression(call, argument, numbers)}" for name, argument in call.kwargs]
        kernel = find_kernel(call, self._device)
        operator = self._name(operator_function(kernel) if isinstance(kernel, OpOverload) else kernel)
        expression = f"{operator}({', '.join(positional + keyword)})"
        made = [(position, value) for position, value in enumerate(call.outputs) if value is not None]
        made.sort(key=lambda each: -each[1].offset)
        outputs = tuple((position, self._number(value), value.block) for position, value in made)
        returns = operator_schema(resolve_operator(call)).returns
        is_single = len(call.outputs) == 1 and not any(isinstance(each.type, torch.ListType) for each in returns)
        invoke = eval(f"lambda tensors: {expression}", self.names)
        returned = {block for _, _, block in outputs}
        arguments = {value.block for value in values_in((call.args, *(each for _, each in call.kwargs)))}
        filled = tuple(block for block in task.creates if block in arguments - returned)
        return BoundCall(expression, invoke, tuple(numbers), filled, outputs, is_single)

    def _expression(self, call: Call, argument: Any, numbers: list[int]) -> str:
        if isinstance(argument, Value):
            numbers.append(self._number(argument))
            return f"tensors[{numbers[-1]}]"
        if isinstance(argument, tuple) and any(isinstance(item, Value) for item in argument):
            return f"[{', '.join(self._expression(call, item, numbers) for item in argument)}]"
        if _is_literal(argument):
            return repr(argument)
        if isinstance(argument, ShapeOf):
            return self._name(shape_only_tensor(call, argument.value, self._device))
        if isinstance(argument, GroupOf):
            return self._name(self._groups[argument.axis])
        return self._name(argument)

    def _name(self, constant: Any) -> str:
        name = f"constant{len(self.names)}"
        self.names[name] = constant
        return name

    def _number(self, value: Value) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(self.values)
            self.values_of_block[value.block].append(len(self.values))
            self.values.append(value)
        return self._numbers[value]


def _is_literal(argument: Any) -> bool:
    """Return whether an argument is written into the source; others stay objects, not printed and parsed."""
    if isinstance(argument, tuple):
        return all(map(_is_literal, argument))
    return argument is None or type(argument) in (bool, int)


def shape_only_tensor(call: Call, value: Value, device: torch.device) -> Tensor:
    """Return a tensor without memory, for an operator that reads only its shape, strides and dtype.

    A backward kernel first converts its input into its own memory format: channels last if the input or the weight is.
    The tensor has that format at once, because the conversion would read memory that does not exist. While the tensor
    is made it takes its full size, which is at most the size of the operator's output.
    """
    layout = _without_memory(value)
    if call.operator.endswith("_backward.default"):
        others = [_without_memory(argument) for argument in call.args if isinstance(argument, Value)]
        formats = {suggest_memory_format(other) for other in (layout, *others[1:])}
        last = formats - {torch.contiguous_format}
        layout = torch.empty_like(layout, memory_format=last.pop() if last else torch.contiguous_format)
    tensor = torch.empty_strided(layout.shape, layout.stride(), dtype=layout.dtype, device=device)
    tensor.untyped_storage().resize_(0)
    return tensor


def _without_memory(value: Value) -> Tensor:
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")
