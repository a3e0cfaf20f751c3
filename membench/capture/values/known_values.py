"""Values of a trace whose tensors have none: those that Python makes of constants in each step."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from membench.core.graph.call import Call, ShapeOf, Value, resolve_operator, values_in
from membench.core.graph.task_graph import Task
from membench.core.libraries.torch_internals import no_dispatch


def evaluate(call: Call, tasks: list[Task], constants: Mapping[int, Tensor]) -> Any | None:
    """Return what a call returns in every step, or None if that depends on a weight, a buffer, data or a random number.

    ``torch.linspace(0, 1, 3)[1].item()`` is 0.5 in every step.

    Args:
        tasks: all that precede the call.
        constants: tensors that have the same value in each step, by block.
    """
    making = _makers({value.block for value in values_in((call.args, call.kwargs))}, tasks, constants)
    if making is None:
        return None
    with no_dispatch():
        tensors = dict(constants)
        for task in reversed(making):
            assert task.call is not None
            result = run_call(task.call, tensors)
            results = result if isinstance(result, tuple | list) else (result,)
            pairs = zip(task.call.outputs, results, strict=True)
            tensors.update({value.block: each for value, each in pairs if value is not None})
        return run_call(call, tensors)


def is_known(block: int, tasks: list[Task], constants: Mapping[int, Tensor]) -> bool:
    """Return whether a block has the same contents in every step; see `evaluate`."""
    return _makers({block}, tasks, constants) is not None


def _makers(needed: set[int], tasks: list[Task], constants: Mapping[int, Tensor]) -> list[Task] | None:
    """Return the tasks that make blocks of constants, the last one first; None if they are made of anything else."""
    making: list[Task] = []
    for task in reversed(tasks):
        if needed.intersection(task.writes):
            if task.random:
                return None
            needed.update(task.reads)
            making.append(task)
    made = {block for task in making for block in task.creates}
    return making if needed <= made | constants.keys() else None


def run_call(call: Call, tensors: Mapping[int, Tensor]) -> Any:
    """Return what a call returns on tensors by block."""
    args = [_argument(each, tensors) for each in call.args]
    return resolve_operator(call)(*args, **{name: _argument(each, tensors) for name, each in call.kwargs})


def _argument(argument: Any, tensors: Mapping[int, Tensor]) -> Any:
    if isinstance(argument, Value):
        storage = tensors[argument.block].untyped_storage()
        empty = torch.empty(0, dtype=argument.dtype, device=storage.device)
        return empty.set_(storage, argument.offset, argument.shape, argument.stride)
    if isinstance(argument, ShapeOf):
        return torch.empty_strided(argument.value.shape, argument.value.stride, dtype=argument.value.dtype)
    if isinstance(argument, torch.device):  # constants are made on the CPU
        return torch.device("cpu")
    return [_argument(item, tensors) for item in argument] if isinstance(argument, tuple) else argument
