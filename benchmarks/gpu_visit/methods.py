"""Part d: five networks without a method and with each: peak, step, exposed copies; then the largest batch of two.

Each network has a process of its own. One of them has the device at a time, to measure operators or steps; meanwhile
the others capture, plan and compile.
"""

import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from benchmarks.gpu_visit.rows import NotRun, Rows, Values, Visit
from membench.backends import accelerator_memory
from membench.capture.capture import Captures
from membench.core.configuration import read
from membench.core.errors import InfeasibleSchedule, OutOfMemory, UnsupportedStrategy, one_line
from membench.core.hardware.device import as_device
from membench.core.step.arguments import call_with
from membench.core.step.workload import Workload
from membench.execution.measurement import peak_bytes, throughput
from membench.lab.validation.predicting import predictor_of
from membench.profiling.cache import load_cache
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import find_strategy
from membench.sweep.cells.baselines import Baseline, PlainPyTorch, SaveOnCpu
from membench.sweep.cells.measured import callers_bytes
from membench.sweep.cells.model import Model
from membench.sweep.limits import by_line, largest

NETWORKS = (("resnet50", 64), ("vgg16", 64), ("vit_b_16", 32), ("densenet121", 32), ("gpt2", 4))
SMALL_NETWORKS = (("digits_cnn", 8),)
METHODS = ("eager", "layrub_hybrid", "vdnn_all", "modnn")
JOINT_SHARES = (0.3, 0.6)
"""Of eager's peak."""
COMPILE_BUDGETS = (1.0, 0.6, 0.3)
"""Of torch.compile's `activation_memory_budget`: shares of what is kept between the passes; 1 keeps all."""
LARGEST_OF = (("resnet18", 64), ("vit_b_16", 16))
"""Networks whose largest batch is searched for, and the step of the search."""
LARGEST_METHODS = ("eager", "layrub_hybrid")
CAP_BYTES = 6 << 30

Measure = Callable[[], Values]


@dataclass(frozen=True)
class Network:
    """A network and its batch on the device at hand."""

    name: str
    batch_size: int
    visit: Visit
    device_of: AbstractContextManager[Any]
    """Held while the device is used for measurements."""

    @cached_property
    def workload(self) -> Workload:
        return Model.named(self.name).workload(self.batch_size, seed=0, device="cpu").to(self.visit.device)

    @property
    def plain_workload(self) -> Workload:
        """The workload with its weights on the device, from where a method may have moved them."""
        return self.workload.to(self.visit.device)

    @cached_property
    def captures(self) -> Captures:
        return Captures(self.workload, self.visit.device, runs_again=True)

    @cached_property
    def cost(self) -> MeasuredCost:
        device = self.visit.device
        return MeasuredCost(device, load_cache(device) if device.type == "cuda" else None)

    @cached_property
    def eager_bytes(self) -> int:
        """The predicted peak of the step without a method."""
        with self.device_of:
            step = build_step(self.captures, self.cost, StepRequest(find_strategy("eager")()))
        step.close()
        return step.predicted_peak_bytes


def run(visit: Visit, rows: Rows) -> None:
    networks = SMALL_NETWORKS if visit.is_small else NETWORKS
    context = multiprocessing.get_context("spawn")
    lock = context.Lock()
    processes = [context.Process(target=measure_network, args=(visit, *each, lock)) for each in networks]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    for name, step in SMALL_NETWORKS if visit.is_small else LARGEST_OF:
        for method in LARGEST_METHODS:
            rows.measure(f"largest batch of {name} {method}", partial(largest_batch, visit, name, step, method))


def measure_network(visit: Visit, name: str, batch_size: int, device_of: AbstractContextManager[Any] | None) -> None:
    """Measure all rows of a network that are not there."""
    torch.set_num_threads(1)
    network, rows = Network(name, batch_size, visit, device_of or nullcontext()), visit.rows("d")
    for system, measured in systems(network).items():
        rows.measure(f"{name} {batch_size} {system}", measured)


def systems(network: Network) -> dict[str, Measure]:
    """Return how each way to run the network's step is measured."""
    found: dict[str, Measure] = {
        "pytorch": partial(_baseline, network, PlainPyTorch()),
        **{name: partial(with_method, network, name) for name in METHODS},
        **{f"joint {share}": partial(with_method, network, "joint", share) for share in JOINT_SHARES},
        "save_on_cpu": partial(_baseline, network, SaveOnCpu()),
    }
    budgets = {f"torch.compile {budget}": partial(_compiled, network, budget) for budget in COMPILE_BUDGETS}
    return found | budgets


def with_method(network: Network, name: str, share: float | None = None) -> Values:
    """Measure a method's step, beside what was predicted of it from operators measured on this device."""
    budget_bytes = None if share is None else int(share * network.eager_bytes)
    network.eager_bytes  # noqa: B018 (measures the operators, once, while the device is this network's)
    options = StepRequest(find_strategy(name)(), budget_bytes)
    # micro-batches are other operators, which are measured where the step is planned
    with network.device_of if name == "modnn" else nullcontext():
        try:
            step = build_step(network.captures, network.cost, options)
        except (InfeasibleSchedule, UnsupportedStrategy, OutOfMemory) as refusal:
            return {"refused": one_line(refusal), "budget_bytes": budget_bytes}
    predicted_s = simulated_step(step.plan, network.cost).step_time_s
    with network.device_of:
        found = step.measure()
    step.close()
    return {
        "budget_bytes": budget_bytes,
        "peak_bytes": found.peak_bytes,
        "predicted_peak_bytes": step.predicted_peak_bytes,
        "excess_bytes": found.peak_bytes - step.predicted_peak_bytes,
        "step_time_s": found.throughput.step_time_s,
        "predicted_step_time_s": predicted_s,
        "copy_time_s": found.copy_time_s,
        "exposed_transfer_s": found.exposed_transfer_s,
    }


def _baseline(network: Network, baseline: Baseline) -> Values:
    step = baseline.step(network.plain_workload)
    with network.device_of:
        return _measured(network, step)


def _compiled(network: Network, budget: float) -> Values:
    device = network.visit.device
    if device.type != "cuda":
        raise NotRun("compiled for GPUs alone; benchmarks/compare has the CPU's")
    import torch._functorch.config as options

    workload = network.plain_workload
    criterion = workload.loss
    assert criterion is not None

    def forward(inputs: Any, targets: Any) -> torch.Tensor:
        return call_with(criterion, targets, call_with(workload.module, inputs))

    torch.compiler.reset()
    with options.patch(activation_memory_budget=budget):
        compiled = torch.compile(forward)

        def step() -> None:
            compiled(workload.inputs, workload.targets).backward()

        step()  # compiles
        workload.module.zero_grad(set_to_none=True)
        with network.device_of:
            return _measured(network, step)


def _measured(network: Network, step: Callable[[], object]) -> Values:
    """Measure a step that membench does not schedule; its peak has the caller's weights and batch, as a schedule's."""
    workload, device = network.workload, network.visit.device

    def run() -> None:
        step()
        workload.module.zero_grad(set_to_none=True)

    run()
    peak = callers_bytes(workload) + peak_bytes(run, device)
    samples = throughput(run, device, images_per_step=network.batch_size, steps_per_window=2, windows=3)
    return {"peak_bytes": peak, "step_time_s": samples.step_time_s}


def largest_batch(visit: Visit, name: str, step: int, method: str) -> Values:
    """Search for the largest batch under a cap on the memory, from the one that the peaks of two small ones predict."""
    if visit.device.type != "cuda":
        raise NotRun("a cap on the allocator's memory is CUDA's")
    accelerator_memory.cap_memory(CAP_BYTES, visit.device)
    peaks: dict[int, int] = {}

    def fits(batch_size: int) -> bool:
        network = Network(name, batch_size, visit, nullcontext())
        try:
            found = build_step(network.captures, network.cost, StepRequest(find_strategy(method)(), CAP_BYTES))
            peaks[batch_size] = found.measure().peak_bytes
        except (InfeasibleSchedule, OutOfMemory, torch.OutOfMemoryError):
            return False
        finally:
            torch.cuda.empty_cache()
        found.close()
        return True

    guess = predicted_batch(name, step, method)
    found = largest(fits, step=step, guess=guess)
    return {"batch_size": found, "predicted": guess, "cap_bytes": CAP_BYTES, "peaks_bytes": peaks}


def predicted_batch(name: str, step: int, method: str) -> int:
    """Return the largest batch under the cap by the simulator's peaks of two small ones."""
    described = {"model": read("model", name), "precision": None, "optimizer": None, "channels_last": False}
    sizes = (step, 2 * step)
    peaks = [
        predictor_of({**described, "batch_size": size, "strategy": method}).on(as_device("h200")).allocated_bytes
        for size in sizes
    ]
    return by_line((sizes[0], peaks[0]), (sizes[1], peaks[1]), CAP_BYTES)
