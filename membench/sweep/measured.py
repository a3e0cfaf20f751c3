"""A cell on a real device: cold start, memory and throughput in passes of their own.

1. cold: the process's first step, while libraries still choose their kernels
2. memory: a step after that
3. throughput: windows of many steps between synchronisations, with the GPU's energy
4. overlap (strategies): a step with a clock around every instruction

A baseline goes through the first three as a strategy does.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch

from membench.backends.cuda import CudaBackend
from membench.backends.cuda_memory import (
    ALLOCATOR_ENVIRONMENT,
    cap_memory,
    capacity_bytes,
    read_memory,
    reset_readings,
)
from membench.capture.capture import Captures
from membench.core.checks import choice
from membench.core.distributed import from_first, joined
from membench.core.errors import OutOfMemory, UnsupportedStrategy
from membench.core.record import Configuration
from membench.core.schedule import Schedule
from membench.core.task_graph import Kind
from membench.core.units import MIB, parse_bytes
from membench.core.workload import Workload
from membench.execution.measurement import Throughput, peak_bytes, synchronize, throughput
from membench.planning.algorithms import Preference
from membench.planning.exchange import Exchange
from membench.profiling.cache import PRODUCT_WORKSPACE_VARIABLE, load_cache
from membench.profiling.measured_cost import MeasuredCost
from membench.profiling.nvml import Reading, read_energy_j, read_processes
from membench.steps.compile import build_step
from membench.steps.compiled_step import CompiledStep
from membench.steps.micro_batched_step import MicroBatchedStep
from membench.steps.simulated_step import simulated_step
from membench.sweep.baselines import Baseline
from membench.sweep.density import with_density
from membench.sweep.engines import WORKSPACE_BYTES, without_workspace
from membench.sweep.metrics import Metrics, plan_metrics, time_metrics

WINDOWS = 5
WINDOW_S = 1.0
SMALL_BUDGET_BYTES = 256 * MIB
SMALL_BUDGET_ENVIRONMENT = {
    PRODUCT_WORKSPACE_VARIABLE: ":16:8",
    "CUBLASLT_WORKSPACE_SIZE": "128",
}
"""cuBLAS keeps up to 32 MiB by default, which a small budget has no room for; here 128 KiB, the least it documents."""

PEAK_TOLERANCE = 0.005
"""By how much a GPU's allocator, which rounds, may exceed a budget that the schedule keeps."""


@dataclass(frozen=True)
class CellMeasurement:
    """What a cell's record says.

    Attributes:
        samples: raw values by metric.
        absent: why a metric is missing, by its name.
    """

    metrics: Metrics = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def read(self, name: str, reading: Reading) -> None:
        """Note a number that a driver may keep to itself."""
        if reading.value is None:
            self.absent[name] = reading.reason
        else:
            self.metrics[name] = reading.value


def environment(configuration: Configuration) -> dict[str, str]:
    """Return what a cell's process needs in its environment before CUDA and cuDNN start there."""
    if configuration["backend"]["name"] != "cuda":
        return {}
    budget = configuration.get("budget")
    is_small = budget is not None and parse_bytes(budget) < SMALL_BUDGET_BYTES
    engines = without_workspace() if is_small or _prefers_memory(configuration) else {}
    return {**ALLOCATOR_ENVIRONMENT, **engines, **(SMALL_BUDGET_ENVIRONMENT if is_small else {})}


def _prefers_memory(configuration: Configuration) -> bool:
    """Return whether the strategy takes the algorithms that need the least memory, (m)."""
    return configuration["strategy"].get("algorithms") == Preference.MEMORY


def measure_baseline(baseline: Baseline, workload: Workload, budget_bytes: int | None) -> CellMeasurement:
    """Measure a step that membench does not schedule.

    Raises:
        OutOfMemory: the device, or its cap, is too small; on the CPU, the budget.
    """
    device = workload.inputs[0].device
    found = CellMeasurement()
    _cap(device, budget_bytes)
    step = baseline.step(workload)

    def run() -> None:
        step()
        workload.module.zero_grad(set_to_none=True)

    try:
        _measure_memory(run, device, found, is_cold=True)
        if device.type == "cpu":
            found.metrics["peak_memory_bytes"] = _callers_bytes(workload) + peak_bytes(run, device)
        _check_budget(found, device, budget_bytes)
        samples = _measure_throughput(run, workload.batch_size, device, found)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(needed_bytes=None, capacity_bytes=capacity_bytes(device)) from error
    found.metrics.update(step_time_s=samples.step_time_s, images_per_s=samples.images_per_s)
    return found


def measure_strategy(
    configuration: Configuration, captures: Captures, budget_bytes: int | None
) -> CellMeasurement:
    """Measure a strategy's step, beside what was predicted of it.

    Raises:
        OutOfMemory: the device, or its cap, is too small after all.
        InfeasibleSchedule, UnsupportedStrategy: as the strategy says.
    """
    device = captures.device
    assert device is not None, "captured to be simulated"
    found = CellMeasurement()
    cuda_graph = configuration["backend"].get("cuda_graph", False)
    cache = load_cache(device) if device.type == "cuda" else None
    cost = MeasuredCost(device, cache, cuda_graph=cuda_graph)
    step = build_step(
        captures,
        with_density(configuration, captures.workload, device),
        cost,
        budget_bytes,
        micro_batch=configuration.get("micro_batch"),
        exchange=choice(Exchange, "exchange", configuration["exchange"]) if joined().count > 1 else None,
        cuda_graph=cuda_graph,
    )
    if _prefers_memory(configuration):
        _check_workspaces(step.plan[0].schedule, device)
    # the first process, which has planned, has the costs
    predicted_s = from_first(lambda: simulated_step(step.plan, cost).step_time_s, "the prediction")
    # what is timed alone, operators and the link, takes memory of its own beside the weights and the batch
    _cap(device, budget_bytes)
    found.metrics.update(plan_metrics(step.plan), predicted_step_time_s=predicted_s, processes=joined().count)

    def run() -> None:
        step(step.workload.inputs, step.workload.targets)
        step.workload.module.zero_grad(set_to_none=True)

    _measure_memory(run, device, found, is_cold=not cost.has_measured)
    samples = _measure_throughput(run, step.workload.batch_size, device, found)
    measurement = step.measure(samples=samples)
    found.metrics.setdefault("peak_memory_bytes", measurement.peak_bytes)
    _check_budget(found, device, budget_bytes)
    found.metrics.update(time_metrics(measurement))
    _read_host_memory(step, found)
    step.close()
    return found


def _cap(device: torch.device, budget_bytes: int | None) -> None:
    if device.type == "cuda" and budget_bytes is not None:
        cap_memory(budget_bytes, device)


def _check_budget(found: CellMeasurement, device: torch.device, budget_bytes: int | None) -> None:
    """Refuse a step that held more than its budget: a CPU has no cap, and a GPU's is that of whole pages.

    Raises:
        OutOfMemory: it did.
    """
    held_bytes = int(found.metrics["peak_memory_bytes"])
    tolerance = PEAK_TOLERANCE if device.type == "cuda" else 0.0
    if budget_bytes is not None and held_bytes > budget_bytes * (1 + tolerance):
        raise OutOfMemory(needed_bytes=held_bytes, capacity_bytes=budget_bytes)


def _measure_memory(
    run: Callable[[], None], device: torch.device, found: CellMeasurement, *, is_cold: bool
) -> None:
    """Run a first step and a second, and read the allocator after each."""
    if device.type != "cuda":
        run()
        return
    reset_readings(device)
    run()
    if is_cold:
        found.metrics["cold_peak_memory_bytes"] = read_memory(device).allocated_bytes
    else:
        found.absent["cold_peak_memory_bytes"] = "operators were timed in this process before; run it again"
    reset_readings(device)
    run()
    readings = asdict(read_memory(device))
    found.metrics["peak_memory_bytes"] = readings.pop("allocated_bytes")
    found.metrics.update(readings)
    processes = read_processes(device)
    found.read("process_memory_bytes", processes.process_bytes)
    found.read("other_processes", processes.others)


def _callers_bytes(workload: Workload) -> int:
    """Return what the caller holds before a step: weights, buffers and the batch."""
    module = workload.module
    tensors = (*module.parameters(), *module.buffers(), *workload.inputs, *workload.targets)
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _measure_throughput(
    run: Callable[[], None], batch_size: int, device: torch.device, found: CellMeasurement
) -> Throughput:
    """Time windows of at least `WINDOW_S`, of as many steps as that takes; the images are those of all processes."""
    images = batch_size * joined().count
    one = throughput(run, device, images_per_step=images, steps_per_window=2, windows=1)
    steps = from_first(lambda: max(1, round(WINDOW_S / one.step_time_s)), "the number of steps")
    synchronize(device)
    before = read_energy_j(device) if device.type == "cuda" else Reading(None, "the CPU has no such counter")
    samples = throughput(run, device, images_per_step=images, steps_per_window=steps, windows=WINDOWS)
    after = read_energy_j(device) if device.type == "cuda" else before
    found.read("energy_j_per_image", energy_per_image(before, after, batch_size * steps * WINDOWS))
    found.samples["images_per_s"] = samples.samples_images_per_s
    found.metrics["interquartile_images_per_s"] = samples.interquartile_images_per_s
    return samples


def energy_per_image(before: Reading, after: Reading, images: int) -> Reading:
    """Return the joules of each image between two readings of a GPU's counter, or why one of them is missing."""
    if before.value is None or after.value is None:
        return before if before.value is None else after
    return Reading((after.value - before.value) / images)


def _check_workspaces(schedule: Schedule, device: torch.device) -> None:
    """Refuse (m) where the engines that this process leaves cuDNN need workspace all the same.

    Raises:
        UnsupportedStrategy: a convolution takes more than `WORKSPACE_BYTES`.
    """
    if device.type != "cuda":
        return
    largest = max(
        (task.workspace_bytes for task in schedule.graph.tasks if task.kind is Kind.CONVOLUTION), default=0
    )
    if largest > WORKSPACE_BYTES:
        raise UnsupportedStrategy(
            f"cuDNN {torch.backends.cudnn.version()} takes {largest:,} bytes of workspace with all engines but its "
            "first two refused; PyTorch offers no other choice of algorithms, so (m) is not run"
        )


def _read_host_memory(step: CompiledStep | MicroBatchedStep, found: CellMeasurement) -> None:
    pinned_bytes = [
        backend.pinned.size_bytes for backend in step.backends if isinstance(backend, CudaBackend)
    ]
    if pinned_bytes:
        found.metrics["pinned_memory_bytes"] = sum(pinned_bytes)
