"""Program: a few calls that run as one, as a kernel of a compiler does; the argument of a fused task's call.

    Call("membench.fused.default", (program, (x, weight, bias)), (), (y, mean))

A task with such a call is a task like any other: its values lie in blocks, its outputs are memory that it makes. What
the calls make and the program does not return lies in no block.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from membench.core.graph.call import Call, ShapeOf, Value, map_values, values_in

FUSED = "membench.fused.default"
"""The operator of a call whose first argument is a `FusedCalls`, and whose second one are the program's inputs."""

_LIBRARY = torch.library.Library("membench", "FRAGMENT")
_LIBRARY.define("fused(Any program, Tensor[] inputs) -> Tensor[]")

BATCH_NORMS = frozenset({"aten.native_batch_norm.default", "aten.cudnn_batch_norm.default"})
"""A training step updates their fourth and fifth argument, the running statistics; both are optional."""


@dataclass(frozen=True, slots=True)
class FusedCalls:
    """Calls in order, without the blocks of a graph: `Value.block` is the number of a memory of the program.

    Equal programs do the same, in whatever graph.

    Attributes:
        inputs: tensors that it takes, each a memory of its own. A call that writes to one updates the caller's block.
        scratch: numbers of inputs whose memory the calls may write to, and whose block keeps its contents.
        outputs: numbers of the memories that it returns.
    """

    calls: tuple[Call, ...]
    inputs: tuple[Value, ...]
    scratch: tuple[int, ...]
    outputs: tuple[int, ...]

    def made(self) -> dict[int, Value]:
        """Return the memories that calls make, each as its first tensor."""
        return {value.block: value for call in self.calls for value in call.outputs if value is not None}


def fused_call(program: FusedCalls, inputs: Sequence[Value], outputs: Sequence[Value]) -> Call:
    """Return the call that runs a program on values of blocks."""
    return Call(FUSED, (program, tuple(inputs)), (), tuple(outputs))


def fused_calls_of(call: Call | None) -> FusedCalls | None:
    """Return the program that a call runs; None for another operator."""
    if call is None or call.operator != FUSED:
        return None
    program: FusedCalls = call.args[0]
    return program


def without_statistics(call: Call) -> Call | None:
    """Return a batch norm, or a program, that does not update running statistics; None for another operator."""
    if call.operator in BATCH_NORMS:
        inputs, weight, bias, _, _, *rest = call.args
        return replace(call, args=(inputs, weight, bias, None, None, *rest))
    program = fused_calls_of(call)
    if program is None:
        return None
    changed = tuple(without_statistics(each) or each for each in program.calls)
    read = {value.block for each in changed for value in values_in(each.args + each.kwargs)}
    kept = [position for position, value in enumerate(program.inputs) if value.block in read]
    inputs = tuple(program.inputs[position] for position in kept)
    made = replace(program, calls=changed, inputs=inputs)
    return fused_call(made, [call.args[1][position] for position in kept], call.outputs)  # type: ignore[arg-type]


def run_fused_calls(
    program: FusedCalls,
    inputs: Sequence[Any],
    run: Callable[[Call, Mapping[int, Any]], Any],
    copy: Callable[[Any], Any],
) -> list[Any]:
    """Return what a program returns for its inputs, on tensors or on whatever stands for them.

    Args:
        run: runs a call on memories by number, and returns the list of its outputs.
        copy: returns new memory with the contents of an input.
    """
    memories = {
        value.block: copy(given) if value.block in program.scratch else given
        for value, given in zip(program.inputs, inputs, strict=True)
    }
    for call in program.calls:
        for value, made in zip(call.outputs, run(call, memories), strict=True):
            if value is not None:
                memories[value.block] = made
    return [memories[number] for number in program.outputs]


def renumbered(call: Call, numbers: Callable[[Value], Value]) -> Call:
    """Return a call with values of other memories; of a value that gives only its shape, the memory is left out."""

    def argument(item: Any) -> Any:
        if isinstance(item, ShapeOf):
            return ShapeOf(replace(item.value, block=-1, offset=0))
        if isinstance(item, tuple):
            return tuple(map(argument, item))
        return map_values(item, numbers)

    return Call(call.operator, argument(call.args), argument(call.kwargs), map_values(call.outputs, numbers))
