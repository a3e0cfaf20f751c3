"""Steps on the CPU, checked against plain PyTorch: the same bits and the predicted peak."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from membench.backends.cpu import Chaos, CpuBackend
from membench.core.schedule import Schedule
from membench.execution.measurement import cpu_peak_bytes
from membench.steps.compiled_step import CompiledStep
from tests.helpers.networks import Reference, run_step
from tests.helpers.timings import has_parallel_tasks


@contextmanager
def step_of(case: Reference, schedule: Schedule, chaos: Chaos | None) -> Iterator[CompiledStep]:
    backend = CpuBackend(schedule.graph, chaos=chaos)
    yield CompiledStep(case.work, case.captured, schedule, backend)
    backend.close()


def check_exact(case: Reference, step: CompiledStep) -> None:
    results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
    case.results.check(results, rounding=step.schedule.rounding)


def check_peak(case: Reference, step: CompiledStep) -> None:
    """Check the stated peak: what a step holds, or where tasks run on other streams, the most under any timing."""
    schedule = step.schedule
    run = partial(step, case.work.inputs, case.work.targets)
    measured_bytes = schedule.graph.external_bytes + cpu_peak_bytes(run, step.backends)
    case.work.module.zero_grad(set_to_none=True)
    difference = f"measured {measured_bytes:,} bytes, predicted {schedule.peak_bytes:,}"
    if has_parallel_tasks(schedule):
        assert measured_bytes <= schedule.peak_bytes, difference
    else:
        assert measured_bytes == schedule.peak_bytes, difference


def check_results_and_peak(case: Reference, schedule: Schedule) -> None:
    """Check that a step is exact, its peak too, and that it stays so with late copies and poisoned freed memory.

    Both the first step, whose tasks are issued one by one, and the second, whose tasks are issued in runs.
    """
    with step_of(case, schedule, chaos=None) as step:
        check_exact(case, step)
        check_peak(case, step)
    with step_of(case, schedule, Chaos(seed=3, longest_delay_s=0.0005)) as step:
        check_peak(case, step)
        check_exact(case, step)
