"""What runs a program: a function that Inductor has compiled for it, or its calls one after another.

A program is compiled when it is first looked up in a process, not within a step. Inductor keeps its code in its cache on disk
(``TORCHINDUCTOR_CACHE_DIR``), from where another process takes it. The results are memory that the function makes, as an
operator does, in the layouts that the eager calls have.
"""

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, fx

from membench.core.call import Call, ShapeOf, Value, resolve_operator
from membench.core.program import Program, run_program
from membench.core.strides import view_of
from membench.core.torch_internals import FakeTensorMode, compile_graph

Run = Callable[[Program, Sequence[Tensor]], list[Tensor]]
"""Runs a program on its inputs; returns its outputs."""

_log = logging.getLogger("membench")


def program_kernel(
    program: Program, device: torch.device, find_kernel: Callable[[Call, torch.device], Callable[..., Any]]
) -> Run:
    """Return the function that runs a program on a device.

    Args:
        find_kernel: returns the function of a single call, for a program that Inductor does not compile.
    """
    function = compiled(program, device, torch.get_num_threads())
    if function is None:
        return _one_by_one(device, find_kernel)
    return lambda _, inputs: list(function(*inputs))


@cache
def compiled(program: Program, device: torch.device, threads: int) -> Callable[..., Sequence[Tensor]] | None:
    """Return a program's compiled function; None if Inductor fails, which is logged once.

    Args:
        threads: of the process, which the code is compiled for.
    """
    try:
        graph = graph_of(program, device)
        with FakeTensorMode():
            _check_layouts(program, graph(*(_unfilled(value, device) for value in program.inputs)))
        return compile_graph(graph, [_unfilled(value, device) for value in program.inputs])
    except Exception as error:  # a compiler fails in its own ways
        names = ", ".join(call.operator for call in program.calls)
        _log.warning(
            "Inductor does not compile %s, which run one by one: %s", names, str(error).partition("\n")[0]
        )
        return None


def graph_of(program: Program, device: torch.device) -> fx.GraphModule:
    """Return a program's calls as a graph that Inductor compiles."""
    graph, made = fx.Graph(), program.made()
    inputs = [graph.placeholder(f"input{position}") for position in range(len(program.inputs))]

    def run(call: Call, memories: Mapping[int, Any]) -> list[Any]:
        def node(item: Any) -> Any:
            if isinstance(item, Value):
                return _view(graph, memories[item.block], made.get(item.block, item), item)
            if isinstance(item, ShapeOf):
                layout: dict[str, Any] = {"dtype": item.value.dtype, "device": device}
                return graph.call_function(
                    torch.ops.aten.empty_strided.default,
                    (list(item.value.shape), list(item.value.stride)),
                    layout,
                )
            return [node(each) for each in item] if isinstance(item, tuple) else item

        names = {name: node(each) for name, each in call.kwargs}
        result = graph.call_function(resolve_operator(call), tuple(map(node, call.args)), names)
        if len(call.outputs) == 1:
            return [result]
        return [graph.call_function(operator.getitem, (result, at)) for at in range(len(call.outputs))]

    graph.output(
        tuple(run_program(program, inputs, run, partial(_called, graph, torch.ops.aten.clone.default)))
    )
    return fx.GraphModule({}, graph)


def _called(graph: fx.Graph, function: Callable[..., Any], *args: Any) -> fx.Node:
    return graph.call_function(function, args)


def _view(graph: fx.Graph, node: fx.Node, whole: Value, part: Value) -> fx.Node:
    if whole == part:
        return node
    view = view_of(whole, part)
    assert view is not None, "fusion joins only what it can view"
    aten = torch.ops.aten
    functions = (aten.permute.default, aten.view.default, aten.expand.default)
    made: fx.Node = view.of(node, *(partial(_called, graph, function) for function in functions))
    return made


def _unfilled(value: Value, device: torch.device) -> Tensor:
    """Return a tensor in a value's layout."""
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=device)


def _check_layouts(program: Program, outputs: Sequence[Tensor]) -> None:
    """Refuse a program whose outputs' layouts are not those of the eager operators, for which a graph has blocks.

    Raises:
        ValueError: names an output.
    """
    made = program.made()
    for number, output in zip(program.outputs, outputs, strict=True):
        value = made[number]
        steps = [step for size, step in zip(value.shape, value.stride, strict=True) if size > 1]
        found = [step for size, step in zip(output.shape, output.stride(), strict=True) if size > 1]
        if (output.dtype, tuple(output.shape), found) != (value.dtype, value.shape, steps):
            raise ValueError(
                f"an output is {tuple(output.shape)} by {found}, and eager PyTorch's is by {steps}"
            )


def _one_by_one(device: torch.device, find_kernel: Callable[[Call, torch.device], Callable[..., Any]]) -> Run:
    """Return a function that runs a program's calls as a graph without fusion would."""

    def run_all(program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
        made = program.made()

        def run(call: Call, memories: Mapping[int, Tensor]) -> list[Any]:
            args, kwargs = (_tensors(part, memories, made, device) for part in (call.args, call.kwargs))
            result = find_kernel(call, device)(*args, **dict(kwargs))
            return [result] if len(call.outputs) == 1 else list(result)

        return run_program(program, inputs, run, Tensor.clone)

    return run_all


def _tensors(
    item: Any, memories: Mapping[int, Tensor], made: Mapping[int, Value], device: torch.device
) -> Any:
    """Return arguments with tensors in place of values. Not a closure: one that calls itself keeps memory until a collection."""
    if isinstance(item, Value):
        whole = memories[item.block]
        return whole if item.block not in made else whole.as_strided(item.shape, item.stride, item.offset)
    if isinstance(item, ShapeOf):
        return _unfilled(item.value, device)
    return [_tensors(each, memories, made, device) for each in item] if isinstance(item, tuple) else item
