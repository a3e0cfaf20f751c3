"""Schedules that use the disk, and steps that run them on a backend whose homes can be the caller's tensors."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from membench.backends.cpu import Chaos
from membench.backends.tensor_backend import TensorBackend
from membench.conformance.results import Reference, Results
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import RepeatedSchedule, Schedule
from membench.core.graph.task_graph import Role, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.hardware.machine import ON_DISK, HostLimit
from membench.core.step.stored import stored_buffers, stored_weights
from membench.core.step.workload import Workload
from membench.execution.executor import BoundSchedule
from membench.planning.builder import ScheduleBuilder
from membench.planning.host_memory.disk import keep_within
from membench.planning.memory.liveness import host_live_bytes
from membench.planning.rewrites.rewrite import keep_on_host
from membench.strategies.base import Strategy
from tests.helpers.devices import DEVICE, backend_of


def layers() -> Workload:
    """Return a small network of few weights, with a random layer."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Dropout(), nn.Linear(16, 3)).to(DEVICE)
    images, targets = torch.randn(4, 6).to(DEVICE), torch.randint(3, (4,)).to(DEVICE)
    return Workload("layers", module, functional.cross_entropy, (images,), (targets,))


class Visits(Strategy):
    """Weights live in host memory and visit for each task; some activations leave after one, and return.

    Args:
        rng: chooses which.
    """

    name = "visits"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = keep_on_host(graph, frozenset({Role.WEIGHT}))
        builder = ScheduleBuilder(self.name, graph, budget_bytes=None)
        for task in graph.tasks:
            builder.prefetch_offloaded(task.reads)
            builder.compute(task)
            builder.free_dead()
            for block in sorted({*task.reads, *task.writes}):
                if not builder.is_resident(block) or not graph.blocks[block].is_transient:
                    continue
                if builder.is_on_host(block):
                    builder.free(block)
                elif self._rng.random() < 0.4:
                    builder.offload(block)
                    builder.free(block)
        return builder.finish()


def within(schedule: Schedule, limit_bytes: int, on_disk: tuple[Role, ...] = ON_DISK) -> Schedule:
    """Return one schedule within a limit of host memory, with blocks of these roles on the disk."""
    [run] = keep_within((RepeatedSchedule(schedule),), HostLimit(limit_bytes, on_disk=on_disk))
    return run.schedule


def host_peak_bytes(schedule: Schedule) -> int:
    return max(host_live_bytes(schedule))


@contextmanager
def prepared(
    case: Reference, schedule: Schedule, folder: Path, chaos: Chaos | None = None
) -> Iterator[tuple[TensorBackend, BoundSchedule, dict[int, Tensor]]]:
    """Yield a backend bound to copies of a network's tensors, a schedule's program on it, and the copies by block."""
    backend = backend_of(schedule, chaos, folder)
    program = BoundSchedule(schedule, backend)
    module, captured = case.work.module, case.captured
    tensors = {captured.weights[n]: weight.detach().clone() for n, weight in stored_weights(module).items()}
    tensors |= {captured.buffers[name]: case.buffers[name].clone() for name in stored_buffers(module)}
    tensors |= captured.constants
    arguments = zip((*captured.inputs, *captured.targets), (*case.work.inputs, *case.work.targets), strict=True)
    tensors |= {block: argument for block, argument in arguments if block is not None}
    tensors = {block: backend.place(block, tensor) for block, tensor in tensors.items()}
    for block, tensor in tensors.items():
        backend.bind(block, tensor)
    yield backend, program, tensors
    backend.close()


def run_once(case: Reference, backend: TensorBackend, program: BoundSchedule, tensors: dict[int, Tensor]) -> Results:
    """Run a step and return its results."""
    captured, graph = case.captured, program.schedule.graph
    for name, buffer in case.buffers.items():
        tensors[captured.buffers[name]].copy_(buffer)
    torch.manual_seed(1)
    with torch.no_grad():
        program.issue(timed=False)
        found = {
            name: None if value is None else backend.tensors.tensor(value).clone(memory_format=torch.contiguous_format)
            for name, value in graph.gradients
        }
        assert graph.loss is not None
        loss = backend.tensors.tensor(graph.loss).clone()
        buffers = {name: tensors[captured.buffers[name]].clone() for name in case.buffers}
    return Results(loss, found, buffers)


def least_host_bytes(schedule: Schedule, on_disk: tuple[Role, ...] = ON_DISK) -> int:
    """Return the least limit of host memory that a schedule can be kept within."""
    try:
        within(schedule, 1, on_disk)
    except InfeasibleSchedule as error:
        return error.needed_bytes
    return 1
