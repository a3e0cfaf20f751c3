"""Measured cells on a real device: cold start, memory and throughput in passes of their own.

1. cold: the process's first step, while libraries still choose their kernels
2. memory: a step after that
3. throughput: windows of many steps between synchronisations, with the GPU's energy
4. overlap (strategies only): a step with a clock around every instruction
"""

from collections.abc import Callable
from dataclasses import asdict

import torch

from membench.backends import accelerator_memory
from membench.backends.accelerator import AcceleratorBackend
from membench.backends.real import real_device
from membench.capture.capture import Captures
from membench.core.errors import OutOfMemory, UnsupportedStrategy
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Kind
from membench.core.libraries.distributed import from_first, joined
from membench.core.record import Configuration
from membench.core.step.arguments import tensors_in
from membench.core.step.workload import Workload
from membench.core.units import MIB, parse_bytes
from membench.execution.measurement import Throughput, peak_bytes, synchronize, throughput
from membench.profiling.cache import PRODUCT_WORKSPACE_VARIABLE, load_cache
from membench.profiling.measured_cost import MeasuredCost
from membench.profiling.nvml import Reading, read_energy_j, read_processes
from membench.steps.compile import build_step
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.micro_batched_step import MicroBatchedStep
from membench.steps.simulated_step import simulated_step
from membench.sweep.cells.baselines import Baseline
from membench.sweep.cells.cell import Cell
from membench.sweep.cells.engines import WORKSPACE_BYTES, without_workspace
from membench.sweep.cells.graphs import Graphs
from membench.sweep.cells.method import Method
from membench.sweep.cells.metrics import CellNumbers, plan_metrics, plan_note, time_metrics

WINDOWS = 5
WINDOW_S = 1.0
SMALL_BUDGET_BYTES = 256 * MIB
SMALL_BUDGET_ENVIRONMENT = {PRODUCT_WORKSPACE_VARIABLE: ":16:8", "CUBLASLT_WORKSPACE_SIZE": "128"}
"""cuBLAS keeps up to 32 MiB by default, too much for a small budget; here 128 KiB, the least that it documents."""

CPU_ENVIRONMENT = {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Lets a process keep the memory that it frees, as the allocator of a GPU does, and take it in huge pages.

Torch reads the first when it starts, glibc the others when the process does. The system otherwise takes a large block
back and supplies it again, which is up to a third of the time of a step that frees early, and on a virtual machine
several times the time of its copy.
"""

PEAK_TOLERANCE = 0.005
"""By how much a GPU's allocator, which rounds, may exceed a budget that the schedule keeps."""


def environment(configuration: Configuration) -> dict[str, str]:
    """Return the variables that a cell's process needs before torch, CUDA and cuDNN start there."""
    if configuration["backend"]["name"] != "cuda":
        return CPU_ENVIRONMENT
    budget = configuration.get("budget")
    is_small = budget is not None and parse_bytes(budget) < SMALL_BUDGET_BYTES
    engines = without_workspace() if is_small or Method(configuration["strategy"]).prefers_memory else {}
    return {**accelerator_memory.ALLOCATOR_ENVIRONMENT, **engines, **(SMALL_BUDGET_ENVIRONMENT if is_small else {})}


def measure(cell: Cell, graphs: Graphs) -> CellNumbers:
    """Measure a cell's baseline or strategy.

    Raises:
        OutOfMemory: the device, or its cap, is too small after all.
        InfeasibleSchedule, UnsupportedStrategy: see the strategy, or the baseline.
        MembenchError: the backend needs a GPU, and there is none.
    """
    baseline = cell.method.baseline
    if baseline is None:
        return _measure_strategy(cell, graphs)
    if joined().count > 1:
        raise UnsupportedStrategy("a baseline runs alone: start it without torchrun")
    if cell.optimizer:
        raise UnsupportedStrategy("a baseline's step ends with the gradients; leave the optimizer out")
    device = real_device(cell.backend)
    return _measure_baseline(baseline, cell.workload(cell.batch_size).to(device), cell.budget_bytes)


def _measure_baseline(baseline: Baseline, workload: Workload, budget_bytes: int | None) -> CellNumbers:
    """Measure a step that membench does not schedule; see `measure`."""
    device = workload.device
    found = CellNumbers()
    _cap(device, budget_bytes)
    step = baseline.step(workload)

    def run() -> None:
        step()
        workload.module.zero_grad(set_to_none=True)

    try:
        _measure_memory(run, device, found, is_cold=True)
        if device.type == "cpu":
            found.metrics["peak_memory_bytes"] = callers_bytes(workload) + peak_bytes(run, device)
        _check_budget(found, device, budget_bytes)
        samples = _measure_throughput(run, workload.batch_size, device, found)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(needed_bytes=None, capacity_bytes=accelerator_memory.capacity_bytes(device)) from error
    found.metrics.update(step_time_s=samples.step_time_s, images_per_s=samples.images_per_s)
    return found


def _measure_strategy(cell: Cell, graphs: Graphs) -> CellNumbers:
    """Measure a strategy's step, next to what was predicted of it; see `measure`."""
    captures = graphs.captures(cell, cell.batch_size)
    device = captures.device
    assert isinstance(device, torch.device), "captured to be simulated"
    found = CellNumbers()
    cache = load_cache(device) if device.type == "cuda" else None
    cost = MeasuredCost(device, cache, cuda_graph=cell.cuda_graph, host_memory_bytes=cell.host_memory_bytes)
    step = _built(cell, graphs, captures, device, cost)
    if cell.method.prefers_memory:
        _check_workspaces(step.plan[0].schedule, device)
    # the first process, which has planned, has the costs
    predicted_s = from_first(lambda: simulated_step(step.plan, cost).step_time_s, "the prediction")
    # timing operators and the link takes memory in addition to the weights and the batch
    _cap(device, cell.budget_bytes)
    found.metrics.update(plan_metrics(step.plan), predicted_step_time_s=predicted_s, processes=joined().count)
    found.note = plan_note(step.plan)

    def run() -> None:
        step(step.workload.inputs, step.workload.targets)
        step.workload.module.zero_grad(set_to_none=True)

    _measure_memory(run, device, found, is_cold=not cost.has_measured)
    samples = _measure_throughput(run, step.workload.batch_size, device, found)
    measurement = step.measure(samples=samples)
    found.metrics.setdefault("peak_memory_bytes", measurement.peak_bytes)
    _check_budget(found, device, cell.budget_bytes)
    found.metrics.update(time_metrics(measurement))
    if cell.step_metrics:
        found.add(cell.step_metrics(step.plan, measurement.timelines, None))
    pinned = [backend.pinned.size_bytes for backend in step.backends if isinstance(backend, AcceleratorBackend)]
    if pinned:
        found.metrics["pinned_memory_bytes"] = sum(pinned)
    step.close()
    return found


def _built(
    cell: Cell, graphs: Graphs, captures: Captures, device: torch.device, cost: MeasuredCost
) -> CompiledStep | MicroBatchedStep:
    return build_step(
        captures,
        cost,
        cell.request(
            cell.method.strategy_for(captures.workload, device),
            cell.exchange if joined().count > 1 and not graphs.ranks else None,
        ),
        ranks=graphs.ranks,
    )


def _read(found: CellNumbers, name: str, reading: Reading) -> None:
    """Add a number that a driver may withhold, or the reason why it is missing."""
    if reading.value is None:
        found.absent[name] = reading.reason
    else:
        found.metrics[name] = reading.value


def _cap(device: torch.device, budget_bytes: int | None) -> None:
    if device.type == "cuda" and budget_bytes is not None:
        accelerator_memory.cap_memory(budget_bytes, device)


def _check_budget(found: CellNumbers, device: torch.device, budget_bytes: int | None) -> None:
    """Refuse a step that held more than its budget: a CPU has no cap, and a GPU's is that of whole pages.

    Raises:
        OutOfMemory: it did.
    """
    held_bytes = int(found.metrics["peak_memory_bytes"])
    tolerance = 0.0 if device.type == "cpu" else PEAK_TOLERANCE
    if budget_bytes is not None and held_bytes > budget_bytes * (1 + tolerance):
        raise OutOfMemory(needed_bytes=held_bytes, capacity_bytes=budget_bytes)


def _measure_memory(run: Callable[[], None], device: torch.device, found: CellNumbers, *, is_cold: bool) -> None:
    """Run a first step and a second, and read the allocator after each."""
    if device.type == "cpu":
        run()
        return
    accelerator_memory.reset_readings(device)
    run()
    if is_cold:
        found.metrics["cold_peak_memory_bytes"] = accelerator_memory.read_memory(device).allocated_bytes
    else:
        found.absent["cold_peak_memory_bytes"] = "operators were timed in this process before; run it again"
    accelerator_memory.reset_readings(device)
    run()
    readings = asdict(accelerator_memory.read_memory(device))
    found.metrics["peak_memory_bytes"] = readings.pop("allocated_bytes")
    found.metrics.update(readings)
    if device.type != "cuda":  # of which alone the driver tells
        return
    processes = read_processes(device)
    _read(found, "process_memory_bytes", processes.process_bytes)
    _read(found, "other_processes", processes.others)


def callers_bytes(workload: Workload) -> int:
    """Return the bytes that the caller holds before a step: weights, buffers and the batch."""
    module = workload.module
    batch = (*tensors_in(workload.inputs), *tensors_in(workload.targets))
    tensors = (*module.parameters(), *module.buffers(), *batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _measure_throughput(
    run: Callable[[], None], batch_size: int, device: torch.device, found: CellNumbers
) -> Throughput:
    """Time windows of at least `WINDOW_S`, each of as many steps as that takes; images are those of all processes."""
    images = batch_size * joined().count
    one = throughput(run, device, images_per_step=images, steps_per_window=2, windows=1)
    steps = from_first(lambda: max(1, round(WINDOW_S / one.step_time_s)), "the number of steps")
    synchronize(device)
    before = (
        read_energy_j(device)
        if device.type == "cuda"
        else Reading(None, f"a device of type {device.type} has no such counter")
    )
    samples = throughput(run, device, images_per_step=images, steps_per_window=steps, windows=WINDOWS)
    after = read_energy_j(device) if device.type == "cuda" else before
    _read(found, "energy_j_per_image", energy_per_image(before, after, batch_size * steps * WINDOWS))
    found.samples["images_per_s"] = samples.samples_images_per_s
    found.metrics["interquartile_images_per_s"] = samples.interquartile_images_per_s
    return samples


def energy_per_image(before: Reading, after: Reading, images: int) -> Reading:
    """Return the joules of each image between two readings of a GPU's counter, or why one of them is missing."""
    if before.value is None or after.value is None:
        return before if before.value is None else after
    return Reading((after.value - before.value) / images)


def _check_workspaces(schedule: Schedule, device: torch.device) -> None:
    """Refuse vDNN's (m) where the engines that this process leaves cuDNN need workspace all the same.

    Raises:
        UnsupportedStrategy: a convolution takes more than `WORKSPACE_BYTES`.
    """
    if device.type != "cuda":
        return
    largest = max((task.workspace_bytes for task in schedule.graph.tasks if task.kind is Kind.CONVOLUTION), default=0)
    if largest > WORKSPACE_BYTES:
        raise UnsupportedStrategy(
            f"cuDNN {torch.backends.cudnn.version()} takes {largest:,} bytes of workspace with all engines but its "
            "first two refused; PyTorch offers no other choice of algorithms, so (m) is not run"
        )
