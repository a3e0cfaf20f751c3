"""Tasks measured alone on the CPU: their workspace and their time, once per operator and shapes."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from membench.backends.tensors import resolve_operator, shape_only_tensor
from membench.convolution import Algorithm
from membench.cost_model import CostModel
from membench.execution.measurement import memory_events, peak_of
from membench.task_graph import Call, ShapeOf, Task, TaskGraph, Value
from membench.units import MIB

_MARKER = "membench operator"
_COPY_PROBE_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class _Measured:
    workspace_bytes: int
    time_s: float


class MeasuredCpuCost(CostModel):
    """Measures each distinct operator call once, under torch's allocator, and remembers it.

    The sum of storage lifetimes and these workspaces is the allocator's peak to the byte.
    """

    def __init__(self) -> None:
        self._measured: dict[Any, _Measured] = {}
        self._copy_bytes_per_s: float | None = None

    def annotate(self, graph: TaskGraph) -> TaskGraph:
        missing = {}
        for task in graph.tasks:
            key = _key(task)
            if key not in self._measured:
                missing[key] = task
        if missing:
            self._measured.update(_measure(missing, graph))
        tasks = (replace(t, workspace_bytes=self._measured[_key(t)].workspace_bytes) for t in graph.tasks)
        return replace(graph, tasks=tuple(tasks))

    def task_time_s(self, task: Task) -> float:
        return self._measured[_key(task)].time_s

    def algorithms(self, task: Task) -> tuple[Algorithm, ...]:
        """Return the operator as torch runs it; the CPU offers no choice."""
        measured = self._measured[_key(task)]
        return (Algorithm("", measured.workspace_bytes, measured.time_s),)

    def launch_time_s(self, task: Task) -> float:
        return 0.0

    def offload_time_s(self, size_bytes: int) -> float:
        if self._copy_bytes_per_s is None:
            source, target = (torch.zeros(_COPY_PROBE_BYTES, dtype=torch.uint8) for _ in range(2))
            start_s = time.perf_counter()
            target.copy_(source)
            self._copy_bytes_per_s = _COPY_PROBE_BYTES / (time.perf_counter() - start_s)
        return size_bytes / self._copy_bytes_per_s

    def prefetch_time_s(self, size_bytes: int) -> float:
        return self.offload_time_s(size_bytes)


def _measure(tasks: dict[Any, Task], graph: TaskGraph) -> dict[Any, _Measured]:
    """Run each task alone within one profile, and read its allocations from between its marks."""
    generator_state = torch.get_rng_state()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        for task in tasks.values():
            _run_alone(task)
    torch.set_rng_state(generator_state)
    events = profile.profiler.kineto_results.events()
    marks = sorted((event.start_ns(), event.end_ns()) for event in events if event.name() == _MARKER)
    changes = iter(memory_events(profile))
    change = next(changes, None)
    measured = {}
    for (key, task), (start_ns, end_ns) in zip(tasks.items(), marks, strict=True):
        inside = []
        while change is not None and change[0] <= end_ns:
            if change[0] >= start_ns:
                inside.append(change[1])
            change = next(changes, None)
        output_bytes = sum(graph.blocks[block].size_bytes for block in task.creates)
        measured[key] = _Measured(max(0, peak_of(inside) - output_bytes), (end_ns - start_ns) * 1e-9)
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
    """Return a tensor of zeros for a value: a valid index everywhere, and sizes do not depend on contents."""
    if isinstance(argument, Value):
        reach = [(n - 1) * step for n, step in zip(argument.shape, argument.stride, strict=True)]
        base: Tensor = torch.zeros(1 + sum(reach) if 0 not in argument.shape else 0, dtype=argument.dtype)
        return base.as_strided(argument.shape, argument.stride)
    if isinstance(argument, ShapeOf):
        return shape_only_tensor(call, argument.value, torch.device("cpu"))
    if isinstance(argument, tuple):
        return [_example(call, item) for item in argument]
    return argument


def _key(task: Task) -> Any:
    """Return what decides a call's cost: operator, shapes, layouts, other arguments, threads."""
    assert task.call is not None, f"task {task.name} can only be simulated"
    call = task.call
    return call.operator, _without_blocks(call.args), _without_blocks(call.kwargs), torch.get_num_threads()


def _without_blocks(argument: Any) -> Any:
    if isinstance(argument, Value):
        return argument.dtype, argument.shape, argument.stride
    if isinstance(argument, ShapeOf):
        return "shape", argument.value.dtype, argument.value.shape, argument.value.stride
    if isinstance(argument, tuple | list):
        return tuple(_without_blocks(item) for item in argument)
    return argument
