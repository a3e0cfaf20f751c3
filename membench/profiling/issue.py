"""Seconds that the host spends on a step's instructions in addition to the operators' own calls.

A GPU computes while the host goes on issuing. With small kernels the host is the slower of the two, and a step takes as
long as issuing: the operators' calls, which are measured one by one, and the executor's overhead, measured here on a
chain of the smallest tasks. Code that runs repeatedly stays in the processor's caches and takes less time than in a
step, so neighbours in the chain differ, and a call is timed after other calls.

A CPU computes while it issues: there copies alone cost time, since threads hand over to each other.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from membench.backends.real import real_backend
from membench.core.graph.call import Call, Value
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    COPY_STREAM,
    Compute,
    Free,
    Instruction,
    Offload,
    Prefetch,
    Schedule,
    Wait,
)
from membench.core.graph.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.execution.executor import BoundSchedule
from membench.execution.measurement import synchronize

_TASKS = 100
_REPETITIONS = 7
_ELEMENTS = 128
_OPERATORS = ("relu", "sigmoid", "tanh", "exp", "neg", "abs", "sqrt", "sin", "round", "log1p")


@dataclass(frozen=True)
class IssueTimes:
    """The host's seconds per instruction.

    Attributes:
        task_s: time of a task, without the call of its operator.
        copy_s: time of an offload or a prefetch, including the waits around it and its memory.
    """

    task_s: float
    copy_s: float


def measure_issue(device: torch.device) -> IssueTimes:
    """Issue a chain of tasks directly, by the executor, and by the executor with results offloaded and prefetched."""
    graph = _chain()
    source = torch.zeros(_ELEMENTS, device=device)
    with torch.no_grad():
        operators_s = _issued_in_s(lambda: _call_operators(source, _TASKS), device)
        tasks_s = _program_s(graph, _tasks, source)
        copies_s = _program_s(graph, _tasks_and_copies, source)
    return IssueTimes(
        task_s=max(0.0, tasks_s - operators_s) / _TASKS, copy_s=max(0.0, copies_s - tasks_s) / (2 * _TASKS)
    )


def call_time_s(call: Callable[[], object], device: torch.device) -> float:
    """Return the host's seconds for a call that follows other calls: the median of several."""
    source = torch.zeros(_ELEMENTS, device=device)
    times_s = []
    for _ in range(_REPETITIONS):
        _call_operators(source, len(_OPERATORS))
        start_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s)


def _call_operators(source: torch.Tensor, count: int) -> None:
    for i in range(count):
        getattr(torch.ops.aten, _operator(i)).default(source)


def _operator(index: int) -> str:
    return _OPERATORS[index % len(_OPERATORS)]


def _program_s(graph: TaskGraph, instructions: Callable[[], list[Instruction]], source: torch.Tensor) -> float:
    schedule = Schedule("chain", graph, tuple(instructions()), 0)
    backend = real_backend(schedule, source.device)
    backend.tensors.hold(0, source)
    program = BoundSchedule(schedule, backend)
    seconds = _issued_in_s(lambda: program.issue(timed=False), source.device)
    backend.close()
    return seconds


def _issued_in_s(run: Callable[[], object], device: torch.device) -> float:
    """Return the least of several times to issue everything, but for the first, which allocates kept memory."""
    times_s = []
    for _ in range(_REPETITIONS + 1):
        synchronize(device)
        start_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - start_s)
    synchronize(device)
    return min(times_s[1:])


def _chain() -> TaskGraph:
    """Return a graph in which each task reads the output of the task before it."""
    values = [Value(i, torch.float32, (_ELEMENTS,), (1,), 0) for i in range(_TASKS + 1)]
    blocks = tuple(
        Block(i, f"block{i}", _ELEMENTS * torch.float32.itemsize, Role.ACTIVATION if i else Role.INPUT, 0)
        for i in range(_TASKS + 1)
    )
    tasks = tuple(
        Task(
            i, f"task{i}", Kind.OTHER, Phase.FORWARD, 0, (i,), (i + 1,), (i + 1,),
            call=Call(f"aten.{_operator(i)}.default", (values[i],), (), (values[i + 1],)),
        )
        for i in range(_TASKS)
    )  # fmt: skip
    return TaskGraph("chain", 1, blocks, tasks, ("layer",))


def _tasks() -> list[Instruction]:
    program: list[Instruction] = []
    for task in range(_TASKS):
        program += [Compute(task), *([Free(task)] if task else [])]
    return [*program, Free(_TASKS)]


def _tasks_and_copies() -> list[Instruction]:
    program: list[Instruction] = []
    for task in range(_TASKS):
        block, here = task + 1, len(program)
        program += [Compute(task), Wait(COPY_STREAM, here), Offload(block), Wait(COMPUTE_STREAM, here + 2)]
        program += [Free(block), Prefetch(block), Wait(COMPUTE_STREAM, here + 5)]
        program += [Free(task)] if task else []
    return [*program, Free(_TASKS)]
