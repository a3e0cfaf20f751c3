"""Costs of isolated operators on a device: memory in addition to the arguments, and seconds."""

import math
import statistics
import time
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from inspect import signature as signature_of
from typing import Any, TypeVar

import torch
from torch import Tensor

from membench.backends.calls.calls import shape_only_tensor
from membench.backends.calls.kernels import find_kernel
from membench.backends.tensors import as_read, describe_mismatch, outputs_of
from membench.core.errors import UnsupportedModel
from membench.core.graph.call import Call, Outputs, ShapeOf, Value, signature
from membench.core.graph.task_graph import Task, TaskGraph
from membench.core.libraries.random_operators import READ_STATE, SET_STATE, forked_random_state
from membench.core.libraries.torch_internals import OpOverload, operator_schema
from membench.core.units import KIB, MIB
from membench.execution.measurement import accelerator_peak_bytes, keep_busy, wake, with_cpu_peak
from membench.profiling.issue import call_time_s

_TIMED_S = 0.01
"""Approximate time for which an operator is repeated on a GPU to be timed."""
_REPETITIONS = (3, 50)
"""The fewest and the most repetitions."""
_RANDOM_NUMBERS = 2**15
_SMALL_BYTES = 64 * KIB
"""Read and written by an operator whose tensors stay in the caches."""
_CACHES_BYTES = 32 * MIB
_SHARE_TRUE = 0.5
"""Of a mask's elements."""
_CPU_REPETITIONS = (3, 9)
"""The fewest and the most runs by which an operator is timed on the CPU."""
_CPU_TIMED_S = (0.5, 0.1)
"""Times from which on it does not run again: before and after the fewest runs."""
_MARGIN = 1.5
"""Ratio of the time for which a GPU is kept busy to the host's measured time for issuing."""


_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """The measured cost of one operator call.

    Attributes:
        held_bytes: peak memory in addition to the arguments.
        time_s: seconds for which the device is busy.
        outputs: what the operator returned, which may differ from its shape function's outputs.
        issue_time_s: seconds of the host's call; 0 if the host is the device.
    """

    held_bytes: int
    time_s: float
    outputs: Outputs
    issue_time_s: float = 0.0

    def workspace_bytes(self, task: Task) -> int:
        """Return the peak in addition to the blocks that a task creates.

        Equal calls may create different ones: outputs in one memory are one block, or, as gradients of two weights,
        two.
        """
        assert task.call is not None
        pairs = zip(task.call.outputs, self.outputs, strict=True)
        sizes = {value.block: output.size_bytes for value, output in pairs if value is not None and output is not None}
        return max(0, self.held_bytes - sum(sizes[block] for block in task.creates if block in sizes))


class OutputMismatch(UnsupportedModel):
    """Operators return tensors whose layouts or sizes differ from their shape functions'.

    Attributes:
        outputs: the layouts that they return, by the signature of their call.
    """

    def __init__(self, graph: TaskGraph, found: dict[Task, Outputs]) -> None:
        task, outputs = next(iter(found.items()))
        super().__init__(*describe_mismatch(task, outputs, graph))
        self.outputs = {_signature_of(task): outputs for task, outputs in found.items()}


def measure_operators(
    tasks: dict[Hashable, Task], graph: TaskGraph, device: torch.device
) -> dict[Hashable, OperatorCost]:
    """Run each task in isolation on synthetic data.

    On the CPU it draws from a generator of its own, as threads of the program may draw meanwhile; otherwise it restores
    the state.

    Raises:
        UnsupportedModel: an operator does not run on synthetic data.
    """
    draws = any(task.random and _drawing_from(task) is None for task in tasks.values())
    is_drawn = device.type != "cpu" or draws
    with torch.no_grad(), forked_random_state(device) if is_drawn else nullcontext():
        measure_all = _on_accelerator if device.type != "cpu" else _on_cpu
        return measure_all(tasks, graph, device)


def _on_synthetic_data(
    task: Task, graph: TaskGraph, device: torch.device, measure: Callable[["_IsolatedCall"], _Found]
) -> _Found:
    """Measure on arguments that the operator accepts: whole numbers of zero, else of one (for a pivot).

    Raises:
        UnsupportedModel: it accepts neither.
    """
    for fill in (0, 1):
        try:
            return measure(_IsolatedCall(task, device, fill))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # each operator checks its arguments in its own way
            failure = error
    message = str(failure).strip().splitlines()[0]
    raise UnsupportedModel(
        graph.layers[task.layer],
        f"{task.name.lstrip(':')} does not run on synthetic data: {message}",
        "pass tensors of the dtypes that it takes, or convert the module"
        if "dtype" in message
        else "replace the operator",
    ) from failure


def _on_accelerator(
    tasks: dict[Hashable, Task], graph: TaskGraph, device: torch.device
) -> dict[Hashable, OperatorCost]:
    def measure(run: _IsolatedCall) -> OperatorCost:
        return _warm_on_accelerator(run, device, outputs_of(run()))

    wake(device)
    return {key: _on_synthetic_data(task, graph, device, measure) for key, task in tasks.items()}


def _warm_on_accelerator(run: "_IsolatedCall", device: torch.device, outputs: Outputs) -> OperatorCost:
    """Measure the peak once the libraries have chosen kernels, then the host's call, then many runs of the kernels.

    The host may be slower than the kernels, so it issues all of them while the device is busy.
    """
    held_bytes = accelerator_peak_bytes(run, device)
    once_s = time_s(run, 1)
    fewest, most = _REPETITIONS
    repetitions = max(fewest, min(most, round(_TIMED_S / max(once_s, 1e-9))))
    if run.task.collective:  # as often in all ranks
        repetitions = fewest
    issue_time_s = call_time_s(run, device)
    kernels_s = time_s(run, repetitions, busy_s=_MARGIN * repetitions * issue_time_s)
    return OperatorCost(held_bytes, kernels_s / repetitions, outputs, issue_time_s)


def time_s(run: Callable[[], object], repetitions: int, *, busy_s: float = 0.0) -> float:
    """Return the seconds of that many runs on the current GPU, by events.

    Args:
        busy_s: least time for which the GPU is kept busy first, so that the runs wait for it and not for the host.
    """
    device = torch.accelerator.current_accelerator()
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    keep_busy(busy_s)
    start.record()
    for _ in range(repetitions):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


def _on_cpu(tasks: dict[Hashable, Task], graph: TaskGraph, device: torch.device) -> dict[Hashable, OperatorCost]:
    """Record the memory of each task's first run; with storage lifetimes it makes up the allocator's peak.

    Later runs are timed, without the recorder: the first one is a cold start, in which libraries choose their kernels.
    """

    def measure(run: _IsolatedCall) -> OperatorCost:
        result, held_bytes = with_cpu_peak(run)
        outputs = outputs_of(result)
        del result  # its memory is free in the runs that are timed, as a dead block's is in a step
        return OperatorCost(held_bytes, _warm_on_cpu_s(run), outputs)

    return {key: _on_synthetic_data(task, graph, device, measure) for key, task in tasks.items()}


def _warm_on_cpu_s(run: "_IsolatedCall") -> float:
    """Return the median seconds of several runs; of few runs if they take long.

    In a step other operators run between the one that makes a tensor and the one that reads it, so that all but small
    tensors leave the caches.
    """
    evicts = run.task.moved_bytes > _SMALL_BYTES
    times_s: list[float] = []
    fewest, most = _CPU_REPETITIONS
    limits_s = _CPU_TIMED_S
    if run.task.collective:  # as often in all ranks
        most, limits_s = fewest, (math.inf, math.inf)
    while len(times_s) < most and sum(times_s) < limits_s[len(times_s) >= fewest]:
        if evicts:
            _evicting().add_(1)
        start_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s)


@cache
def _evicting() -> Tensor:
    """Return a tensor that takes the place of others in the caches when it is read and written."""
    return torch.zeros(_CACHES_BYTES, dtype=torch.uint8)


class _IsolatedCall:
    """One operator call on synthetic arguments."""

    def __init__(self, task: Task, device: torch.device, fill: int) -> None:
        call = task.call
        assert call is not None, f"task {task.name} can only be simulated"
        self.task = task
        self._operator = find_kernel(call, device)
        if call.operator == SET_STATE:  # checks that it is a state
            self._args = [find_kernel(replace(call, operator=READ_STATE), device)(call.args[1]), call.args[1]]
        else:
            self._args = [_example(call, argument, device, fill) for argument in call.args]
        self._kwargs = {name: _example(call, argument, device, fill) for name, argument in call.kwargs}
        drawn = _drawing_from(task) if device.type == "cpu" else None
        if drawn is not None:
            self._operator = partial(drawn, generator=_own_generator())

    def __call__(self) -> Any:
        return self._operator(*self._args, **self._kwargs)


def _drawing_from(task: Task) -> Callable[..., Any] | None:
    """Return what runs a random task on the CPU with a given generator, None if nothing does or it is not random."""
    assert task.call is not None
    if not task.random:
        return None
    kernel = find_kernel(task.call, torch.device("cpu"))
    if not isinstance(kernel, OpOverload):
        return kernel if "generator" in signature_of(kernel).parameters else None
    overloads = kernel.overloadpacket
    for drawing, names in ((kernel, [kernel]), (overloads, [getattr(overloads, n) for n in overloads.overloads()])):
        if any(each.name == "generator" for name in names for each in operator_schema(name).arguments):
            return drawing
    return None


@cache
def _own_generator() -> torch.Generator:
    """Return a generator of the CPU that only measurements draw from."""
    return torch.Generator().manual_seed(0)


def _example(call: Call, argument: Any, device: torch.device, fill: int) -> Any:
    """Return a tensor for a value: zeros (valid indices everywhere) or ones, and random floating-point numbers.

    Sizes do not depend on contents, but times do: a GPU's clock rises on zeros, and a CPU predicts their comparisons.
    So masks are random instead of zero.
    """
    if isinstance(argument, Value):
        reach = [(n - 1) * step for n, step in zip(argument.shape, argument.stride, strict=True)]
        size = 1 + sum(reach) if 0 not in argument.shape else 0
        if argument.dtype.is_floating_point:
            base = _random(size, argument.dtype, device)
        elif argument.dtype is torch.bool and not fill:
            base = _random(size, torch.float32, device) < _SHARE_TRUE
        else:
            base = torch.full((size,), fill, dtype=argument.dtype, device=device)
        return as_read(base.as_strided(argument.shape, argument.stride), argument)
    if isinstance(argument, ShapeOf):
        return shape_only_tensor(call, argument.value, device)
    if isinstance(argument, tuple):
        return [_example(call, item, device, fill) for item in argument]
    return argument


def _random(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers between 0 and 1, repeated after `_RANDOM_NUMBERS`: copies take less time than more of them."""
    drawn = torch.float32 if dtype.itemsize == 1 else dtype  # torch draws no numbers of 8 bits
    generator = _own_generator() if device.type == "cpu" else None
    numbers = torch.empty(min(size, _RANDOM_NUMBERS), dtype=drawn, device=device)
    numbers = numbers.uniform_(generator=generator).to(dtype)
    return numbers.repeat(-(-size // max(1, len(numbers))))[:size]


def key_of(task: Task) -> Hashable:
    """Return the key of a call's cost: operator, shapes, layouts, other arguments, threads, use of oneDNN.

    An operator without tensors may make them in the default dtype, which is part of its key where that is not torch's
    own.
    """
    default = torch.get_default_dtype()
    of_dtype = () if default is torch.float32 else (str(default),)
    return _signature_of(task), torch.get_num_threads(), torch.backends.mkldnn.enabled, *of_dtype


def _signature_of(task: Task) -> Hashable:
    assert task.call is not None, f"task {task.name} can only be simulated"
    return signature(task.call.operator, task.call.args, task.call.kwargs)
