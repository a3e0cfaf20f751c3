"""What runs a program: a function that Inductor has compiled for it, or its calls one after another.

A program is compiled before a step, with all others of its graph (`prepare`). The results are memory that the function
makes, as an operator does, in the layouts that the eager calls have.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from membench.backends.calls.compiled_functions import CompiledFunctions
from membench.backends.calls.fused_graph import unfilled
from membench.core.graph.call import Call, ShapeOf, Value
from membench.core.graph.fused_calls import FusedCalls, fused_calls_of, run_fused_calls

Run = Callable[[FusedCalls, Sequence[Tensor]], Sequence[Tensor]]
"""Runs a program on its inputs; returns its outputs."""


@cache
def compiled_functions(device: torch.device, threads: int) -> CompiledFunctions:
    """Return the compiled programs of this process for a device, of code for that many threads."""
    return CompiledFunctions(device, threads)


def prepare(calls: Iterable[Call | None], device: torch.device) -> None:
    """Compile the programs among calls, those that have not been compiled yet, at once."""
    programs = list(dict.fromkeys(program for call in calls if (program := fused_calls_of(call))))
    if programs:
        compiled_functions(device, torch.get_num_threads()).compile(programs)


def program_kernel(
    program: FusedCalls, device: torch.device, find_kernel: Callable[[Call, torch.device], Callable[..., Any]]
) -> Run:
    """Return the function that runs a program on a device.

    Args:
        find_kernel: returns the function of a single call, for a program that Inductor does not compile.
    """
    function = compiled_functions(device, torch.get_num_threads()).function(program)
    if function is None:
        return _one_by_one(device, find_kernel)
    return lambda _, inputs: function(list(inputs))


def _one_by_one(device: torch.device, find_kernel: Callable[[Call, torch.device], Callable[..., Any]]) -> Run:
    """Return a function that runs a program's calls as a graph without fusion would."""

    def run_all(program: FusedCalls, inputs: Sequence[Tensor]) -> list[Tensor]:
        made = program.made()

        def run(call: Call, memories: Mapping[int, Tensor]) -> list[Any]:
            args, kwargs = (_tensors(part, memories, made, device) for part in (call.args, call.kwargs))
            result = find_kernel(call, device)(*args, **dict(kwargs))
            return [result] if len(call.outputs) == 1 else list(result)

        return run_fused_calls(program, inputs, run, Tensor.clone)

    return run_all


def _tensors(item: Any, memories: Mapping[int, Tensor], made: Mapping[int, Value], device: torch.device) -> Any:
    """Return arguments with tensors in place of values.

    Not a closure: one that calls itself keeps memory until a collection.
    """
    if isinstance(item, Value):
        whole = memories[item.block]
        return whole if item.block not in made else whole.as_strided(item.shape, item.stride, item.offset)
    if isinstance(item, ShapeOf):
        return unfilled(item.value, device)
    return [_tensors(each, memories, made, device) for each in item] if isinstance(item, tuple) else item
