"""Steps on a device, checked against plain PyTorch: the same bits and the predicted peak."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from membench.backends.cpu import Chaos
from membench.backends.tensor_backend import TensorBackend
from membench.conformance.results import Reference, require, run_step
from membench.core.graph.schedule import COMPUTE_STREAM, Compute, Schedule
from membench.execution.measurement import peak_bytes
from membench.steps.real.compiled_step import CompiledStep

BackendOf = Callable[[Schedule, Chaos | None], TensorBackend]
"""Returns the device's backend for a schedule; with `Chaos`, copies are late and freed memory is poisoned."""
_LATE = Chaos(seed=3, longest_delay_s=0.0005)


@contextmanager
def step_on(backend: TensorBackend, case: Reference, schedule: Schedule) -> Iterator[CompiledStep]:
    """Provide a network's step on a backend, which is closed afterwards."""
    yield CompiledStep(case.work, case.captured, schedule, backend)
    backend.close()


def check_results_and_peak(case: Reference, schedule: Schedule, backend_of: BackendOf) -> None:
    """Check that a step is exact, its peak too, and that it stays so with late copies and poisoned freed memory.

    Both the first step, whose tasks are issued one by one, and the second, whose tasks are issued in runs.

    Raises:
        BrokenContract: it is not.
    """
    with step_on(backend_of(schedule, None), case, schedule) as step:
        check_exact(case, step)
        check_peak(case, step)
    with step_on(backend_of(schedule, _LATE), case, schedule) as step:
        check_peak(case, step)
        check_exact(case, step)


def check_exact(case: Reference, step: CompiledStep) -> None:
    """Check that loss, gradients and buffers are plain PyTorch's.

    Raises:
        BrokenContract: they are not.
    """
    results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
    case.check(results, rounding=step.schedule.rounding)


def check_peak(case: Reference, step: CompiledStep) -> None:
    """Check the stated peak: what a step holds, or where tasks run on other streams, the most under any timing.

    Raises:
        BrokenContract: the allocator's peak is another.
    """
    schedule, device = step.schedule, case.work.device
    run = partial(step, case.work.inputs, case.work.targets)
    measured_bytes = schedule.graph.external_bytes + peak_bytes(run, device, step.backends)
    case.work.module.zero_grad(set_to_none=True)
    least_bytes = (
        0 if has_parallel_tasks(schedule) else schedule.peak_bytes - bytes_in_host_memory(schedule, device.type)
    )
    require(
        least_bytes <= measured_bytes <= schedule.peak_bytes,
        f"the peak is {measured_bytes:,} bytes, and {schedule.peak_bytes:,} are predicted",
    )


def has_parallel_tasks(schedule: Schedule) -> bool:
    """Return whether tasks run on other streams, so that the memory in use depends on timing."""
    return any(isinstance(i, Compute) and i.stream != COMPUTE_STREAM for i in schedule.instructions)


def bytes_in_host_memory(schedule: Schedule, device_type: str) -> int:
    """Return the most bytes of a peak that GPU kernels leave on the host: two numbers of each attention's state."""
    if device_type != "cuda":
        return 0
    calls = [task.call for task in schedule.graph.tasks if task.call is not None]
    return 16 * sum("_scaled_dot_product_efficient_attention." in call.operator for call in calls)
