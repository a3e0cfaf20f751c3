"""Steps on the CPU, checked against plain PyTorch: the same bits and the predicted peak."""

from collections.abc import Iterator
from contextlib import contextmanager

from membench.backends.cpu import Chaos, CpuBackend
from membench.core.schedule import Schedule
from membench.execution.measurement import cpu_peak_bytes
from membench.steps.compiled_step import CompiledStep
from tests.helpers.networks import Reference, run_step


@contextmanager
def step_of(case: Reference, schedule: Schedule, chaos: Chaos | None) -> Iterator[CompiledStep]:
    backend = CpuBackend(schedule.graph, chaos=chaos)
    yield CompiledStep(case.work, case.captured, schedule, backend)
    backend.close()


def check_exact(case: Reference, step: CompiledStep) -> None:
    results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
    case.results.check(results, rounding=step.schedule.rounding)


def check_results_and_peak(case: Reference, schedule: Schedule) -> None:
    """Check that a step is exact, its peak too, and that it stays so with late copies and poisoned freed memory."""
    with step_of(case, schedule, chaos=None) as step:
        check_exact(case, step)
        peak_bytes = cpu_peak_bytes(lambda: step(case.work.inputs, case.work.targets))
        case.work.module.zero_grad(set_to_none=True)
        assert schedule.graph.external_bytes + peak_bytes == step.predicted_peak_bytes
    with step_of(case, schedule, Chaos(seed=3, longest_delay_s=0.0005)) as step:
        check_exact(case, step)
