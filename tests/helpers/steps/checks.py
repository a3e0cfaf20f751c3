"""Steps on the device under test, checked against plain PyTorch: the same bits and the predicted peak."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from membench.backends.cpu import Chaos
from membench.core.graph.schedule import Schedule
from membench.steps.real.compiled_step import CompiledStep
from tests.helpers.devices import DEVICE, allocator_peak_bytes, backend_of
from tests.helpers.networks.contract import Reference, run_step
from tests.helpers.planning.timings import has_parallel_tasks


@contextmanager
def step_of(case: Reference, schedule: Schedule, chaos: Chaos | None) -> Iterator[CompiledStep]:
    backend = backend_of(schedule, chaos)
    yield CompiledStep(case.work, case.captured, schedule, backend)
    backend.close()


def check_exact(case: Reference, step: CompiledStep) -> None:
    results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
    case.check(results, rounding=step.schedule.rounding)


def check_peak(case: Reference, step: CompiledStep) -> None:
    """Check the stated peak: what a step holds, or where tasks run on other streams, the most under any timing."""
    schedule = step.schedule
    run = partial(step, case.work.inputs, case.work.targets)
    measured_bytes = schedule.graph.external_bytes + allocator_peak_bytes(run, step.backends)
    case.work.module.zero_grad(set_to_none=True)
    difference = f"measured {measured_bytes:,} bytes, predicted {schedule.peak_bytes:,}"
    assert measured_bytes <= schedule.peak_bytes, difference
    if not has_parallel_tasks(schedule):
        assert measured_bytes >= schedule.peak_bytes - bytes_in_host_memory(schedule), difference


def bytes_in_host_memory(schedule: Schedule) -> int:
    """Return the most bytes of a peak that GPU kernels leave on the host: two numbers of each attention's state."""
    if DEVICE.type != "cuda":
        return 0
    calls = [task.call for task in schedule.graph.tasks if task.call is not None]
    return 16 * sum("_scaled_dot_product_efficient_attention." in call.operator for call in calls)


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
