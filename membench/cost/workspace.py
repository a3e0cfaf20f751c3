"""Workspace: what an operator holds inside beyond its outputs, measured once per operator and shapes."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from membench.backends.tensors import resolve_operator, shape_only_tensor
from membench.execution.measurement import memory_events, peak_of
from membench.task_graph import Call, ShapeOf, Task, TaskGraph, Value

_MARKER = "membench operator"


class CpuWorkspaces:
    """Measures operators alone on the CPU, under torch's allocator, and remembers what it measured."""

    def __init__(self) -> None:
        self._measured: dict[Any, int] = {}

    def annotate(self, graph: TaskGraph) -> TaskGraph:
        """Return the graph with the workspace of every task."""
        missing = {}
        for task in graph.tasks:
            key = _key(task)
            if key not in self._measured:
                missing[key] = task
        if missing:
            self._measured.update(_measure(missing, graph))
        tasks = tuple(replace(task, workspace_bytes=self._measured[_key(task)]) for task in graph.tasks)
        return replace(graph, tasks=tasks)


def _measure(tasks: dict[Any, Task], graph: TaskGraph) -> dict[Any, int]:
    generator_state = torch.get_rng_state()
    ranges: dict[Any, tuple[int, int]] = {}
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
        for key, task in tasks.items():
            _run_alone(task)
    torch.set_rng_state(generator_state)
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    starts = sorted((e.start_ns(), e.end_ns()) for e in events if e.name() == _MARKER)
    for key, (start_ns, end_ns) in zip(tasks, starts, strict=True):
        ranges[key] = (start_ns, end_ns)
    changes = memory_events(profile)
    position = 0
    measured = {}
    for key, (start_ns, end_ns) in ranges.items():
        while position < len(changes) and changes[position][0] < start_ns:
            position += 1
        inside = []
        while position < len(changes) and changes[position][0] <= end_ns:
            inside.append(changes[position][1])
            position += 1
        output_bytes = sum(graph.blocks[block].size_bytes for block in tasks[key].creates)
        measured[key] = max(0, peak_of(inside) - output_bytes)
    return measured


def _run_alone(task: Task) -> None:
    call = task.call
    assert call is not None, f"task {task.name} can only be simulated"
    operator = resolve_operator(call)
    args = [_example(call, argument) for argument in call.args]
    kwargs = {name: _example(call, argument) for name, argument in call.kwargs}
    with torch.profiler.record_function(_MARKER):
        result = operator(*args, **kwargs)
    del result


def _example(call: Call, argument: Any) -> Any:
    """Return a tensor of zeros for a value: valid for every index, and sizes do not depend on contents."""
    if isinstance(argument, Value):
        extent = 1 + sum((n - 1) * s for n, s in zip(argument.shape, argument.stride, strict=True) if n)
        base: Tensor = torch.zeros(max(extent, 0), dtype=argument.dtype)
        return base.as_strided(argument.shape, argument.stride)
    if isinstance(argument, ShapeOf):
        return shape_only_tensor(call, argument.value, torch.device("cpu"))
    if isinstance(argument, tuple):
        return [_example(call, item) for item in argument]
    return argument


def _key(task: Task) -> Any:
    assert task.call is not None, f"task {task.name} can only be simulated"
    return (task.call.operator, _without_blocks(task.call.args), _without_blocks(task.call.kwargs), torch.get_num_threads())


def _without_blocks(argument: Any) -> Any:
    if isinstance(argument, Value):
        return (argument.dtype, argument.shape, argument.stride)
    if isinstance(argument, ShapeOf):
        return ("shape", argument.value.dtype, argument.value.shape, argument.value.stride)
    if isinstance(argument, tuple | list):
        return tuple(_without_blocks(item) for item in argument)
    return argument
