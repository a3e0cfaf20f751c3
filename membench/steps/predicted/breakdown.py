"""A predicted step's time by operator: how often each runs, how long, what it computes and moves."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from membench.core.graph.fused_calls import fused_calls_of
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.graph.task_graph import RECOMPUTED_SUFFIX, Phase, Task
from membench.core.hardware.cost_model import CostModel
from membench.cost.kernels import Family, kernels_of

_COMPUTING = {Family.PRODUCT, Family.ATTENTION, Family.CONVOLUTION, Family.GROUPED, Family.NARROW, Family.DEPTHWISE}


@dataclass(frozen=True)
class OperatorTime:
    """All calls of one operator in a step.

    Attributes:
        name: torch's name of the operator; ``"fused"`` and the family of its kernels for what a compiler fuses,
            ``"update"`` for an optimizer's, a collective with its axis. `RECOMPUTED_SUFFIX` follows where it runs
            again.
        calls: tasks; a fused one may have several kernels.
        time_s: seconds on its stream, launches not counted. Collectives run beside kernels.
        operations: floating-point operations of products, convolutions and attention; 0 of others, which are priced by
            their bytes.
        moved_bytes: read and written in the memory of the device.
    """

    name: str
    calls: int
    time_s: float
    operations: int
    moved_bytes: int


def operator_times(runs: Iterable[RepeatedSchedule], cost: CostModel) -> tuple[OperatorTime, ...]:
    """Return a planned step's operators, those with the most seconds first, without copies to the host."""
    found: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0, 0])
    for run in runs:
        for task in run.schedule.graph.tasks:
            if task.on_host:
                continue
            kernels = () if task.collective else kernels_of(task)
            moved_bytes = sum(kernel.moved_bytes + kernel.layout_bytes for kernel in kernels)
            sums = found[_name(task)]
            operations = sum(kernel.operations for kernel in kernels if kernel.family in _COMPUTING)
            added = (1, cost.task_time_s(task), operations, moved_bytes)
            sums[:] = (total + run.count * each for total, each in zip(sums, added, strict=True))
    named = (
        OperatorTime(name, int(calls), time_s, int(operations), int(moved_bytes))
        for name, (calls, time_s, operations, moved_bytes) in found.items()
    )
    return tuple(sorted(named, key=lambda operator: -operator.time_s))


def _name(task: Task) -> str:
    again = RECOMPUTED_SUFFIX if task.is_recomputed else ""
    if task.collective is not None:
        return f"{task.collective.kind} over {task.collective.axis}{again}"
    if task.phase is Phase.UPDATE:
        return "update"
    if task.call is None:
        return f"{task.kind}{again}"
    if fused_calls_of(task.call) is not None:
        families = sorted({kernel.family.value for kernel in kernels_of(task)})
        return f"fused {', '.join(families)}{again}"
    return f"{task.call.operator.removeprefix('aten.').removesuffix('.default')}{again}"
