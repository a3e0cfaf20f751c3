"""A program as a graph that Inductor compiles, in the layouts that the eager calls have."""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from membench.core.graph.call import Call, ShapeOf, Value, resolve_operator
from membench.core.graph.fused_calls import FusedCalls, run_fused_calls
from membench.core.graph.strides import view_of
from membench.core.libraries.torch_internals import FakeTensorMode


def checked_graph(program: FusedCalls, device: torch.device) -> fx.GraphModule:
    """Return a program's calls as a graph.

    Raises:
        ValueError: the layout of an output would not be that of the eager operators.
    """
    graph = graph_of(program, device)
    with FakeTensorMode():
        _check_layouts(program, graph(*(unfilled(value, device) for value in program.inputs)))
    return graph


def graph_of(program: FusedCalls, device: torch.device) -> fx.GraphModule:
    """Return a program's calls as a graph, without a check."""
    graph, made = fx.Graph(), program.made()
    inputs = [graph.placeholder(f"input{position}") for position in range(len(program.inputs))]

    def run(call: Call, memories: Mapping[int, Any]) -> list[Any]:
        def node(item: Any) -> Any:
            if isinstance(item, Value):
                return _view(graph, memories[item.block], made.get(item.block, item), item)
            if isinstance(item, ShapeOf):
                layout: dict[str, Any] = {"dtype": item.value.dtype, "device": device}
                return graph.call_function(
                    torch.ops.aten.empty_strided.default, (list(item.value.shape), list(item.value.stride)), layout
                )
            return [node(each) for each in item] if isinstance(item, tuple) else item

        names = {name: node(each) for name, each in call.kwargs}
        result = graph.call_function(resolve_operator(call), tuple(map(node, call.args)), names)
        if len(call.outputs) == 1:
            return [result]
        return [graph.call_function(operator.getitem, (result, at)) for at in range(len(call.outputs))]

    graph.output(tuple(run_fused_calls(program, inputs, run, partial(_called, graph, torch.ops.aten.clone.default))))
    return fx.GraphModule({}, graph)


def _called(graph: fx.Graph, function: Callable[..., Any], *args: Any) -> fx.Node:
    return graph.call_function(function, args)


def _view(graph: fx.Graph, node: fx.Node, whole: Value, part: Value) -> fx.Node:
    if whole == part:
        return node
    view = view_of(whole, part)
    assert view is not None, "fusion joins only what it can view"
    aten = torch.ops.aten
    functions = (aten.permute.default, aten.view.default, aten.slice.Tensor, aten.expand.default)
    made: fx.Node = view.of(node, *(partial(_called, graph, function) for function in functions))
    return made


def unfilled(value: Value, device: torch.device) -> Tensor:
    """Return a tensor in a value's layout."""
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=device)


def _check_layouts(program: FusedCalls, outputs: Sequence[Tensor]) -> None:
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
            raise ValueError(f"an output is {tuple(output.shape)} by {found}, and eager PyTorch's is by {steps}")
