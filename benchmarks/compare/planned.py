"""Steps under membench's strategies."""

import copy
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch

from benchmarks.compare.copies import Copies
from benchmarks.compare.row import INFERENCE, MEMBENCH, NOT_RUN, OK, TRAINING, Row
from benchmarks.compare.step import Step
from membench.capture.capture import Captures
from membench.core.errors import MembenchError, one_line
from membench.core.graph.schedule import Offload, Prefetch
from membench.core.graph.task_graph import Mode
from membench.core.step.kernels import Kernels
from membench.core.step.workload import Workload
from membench.planning.memory.liveness import copied_bytes
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.compile import build_step
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.micro_batched_step import MicroBatchedStep
from membench.steps.request import StepRequest
from membench.strategies.base import strategies
from membench.sweep.cells.measured import callers_bytes


@dataclass(frozen=True)
class Planned:
    """A row without measurements, and its step, None if another row has the same schedule or it cannot be run."""

    row: Row
    step: Step | None


def planned_steps(
    network: str,
    workload: Workload,
    device: torch.device,
    budgets: Sequence[int],
    kernels: Kernels,
    names: Sequence[str],
) -> Iterator[Planned]:
    """Yield each strategy's step without a budget, and under each budget below its peak there.

    Compiled kernels get weights and inputs with channels last, as Inductor lays out convolutions on the CPU.

    Args:
        names: strategies that are left out are not among them.

    Raises:
        UnsupportedModel: the network cannot be captured.
    """
    if kernels is Kernels.INDUCTOR:
        workload = replace(workload, module=copy.deepcopy(workload.module), channels_last=True).converted()
    captures, cost = Captures(workload, device), MeasuredCost(device, None)
    mode = TRAINING if workload.trains else INFERENCE
    seen: dict[Hashable, str] = {}
    for name, strategy in strategies(Mode(mode)).items():
        if name not in names:
            continue
        free_bytes: float = inf
        for budget_bytes in (None, *budgets):
            if budget_bytes is not None and budget_bytes >= free_bytes:
                continue
            row = Row(network, mode, MEMBENCH, name, NOT_RUN, budget_bytes=budget_bytes, kernels=kernels)
            start_s = time.process_time()
            try:
                step = build_step(captures, cost, StepRequest(strategy(), budget_bytes, kernels=kernels))
            except MembenchError as error:
                yield Planned(replace(row, reason=one_line(error)), None)
                continue
            spent_s = time.process_time() - start_s
            if budget_bytes is None:
                free_bytes = step.predicted_peak_bytes
            schedules = tuple((part.schedule.instructions, part.count) for part in step.plan)
            same_as = seen.setdefault(schedules, row.label)
            if same_as == row.label:
                yield Planned(replace(row, outcome=OK, ready_time_s=spent_s), _as_step(step))
            else:
                step.close()
                yield Planned(replace(row, outcome=OK, ready_time_s=spent_s, same_as=same_as), None)


def _as_step(step: CompiledStep | MicroBatchedStep) -> Step:
    workload, first = step.workload, step.plan[0].schedule
    copies = Copies(
        to_host_bytes=sum(copied_bytes(part.schedule, Offload) * part.count for part in step.plan),
        to_device_bytes=sum(copied_bytes(part.schedule, Prefetch) * part.count for part in step.plan),
    )
    keeps_weights_on_the_host = any(backend.has_host_resident_blocks for backend in step.backends)
    return Step(
        run=lambda: step(workload.inputs, workload.targets),
        module=workload.module,
        count=lambda: copies,
        callers_bytes=first.graph.external_bytes if keeps_weights_on_the_host else callers_bytes(workload),
        backends=step.backends,
        close=step.close,
    )
