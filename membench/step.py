"""The library entry: `membench.compile` turns a training step into one with a memory strategy.

capture -> annotate with the device's costs -> strategy -> validate -> a step that runs or simulates
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from membench import configuration
from membench.backends.cpu import CpuBackend
from membench.backends.cuda import CudaBackend
from membench.backends.simulated import SimulatedBackend
from membench.backends.tensor_backend import TensorBackend
from membench.capture.capture import CapturedStep, capture
from membench.cost.cache import load_cache
from membench.cost.measured import MeasuredCost
from membench.cost.roofline import RooflineCost
from membench.cost_model import CostModel
from membench.device import DeviceProfile
from membench.errors import MembenchError, OutOfMemory, UnsupportedModel
from membench.execution.executor import execute
from membench.execution.measurement import Throughput
from membench.planning.validate import validate
from membench.record import Source
from membench.schedule import Schedule
from membench.step_measurement import StepMeasurement, step_measurement
from membench.strategies.base import Strategy, find_strategy
from membench.task_graph import TaskGraph
from membench.timeline import Timeline
from membench.training_step import TrainingStep, as_tuple
from membench.units import parse_bytes
from membench.workload import Workload


class SimulatedStep:
    """A captured training step that is played on a virtual device; nothing is allocated.

    Attributes:
        schedule: the program; prints as text.
        predicted_peak_bytes: everything that the step would hold at its worst moment.
        timeline: what would run when, on which stream.
    """

    def __init__(self, schedule: Schedule, timeline: Timeline) -> None:
        self.schedule = schedule
        self.predicted_peak_bytes = schedule.peak_bytes
        self.timeline = timeline

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        raise MembenchError(
            "a simulated step computes nothing; compile with backend='cpu' or backend='cuda' to run it"
        )

    def measure(self) -> StepMeasurement:
        """Return what the simulation found."""
        played = Throughput(self.schedule.graph.batch_size, 1, (self.timeline.step_time_s,))
        return step_measurement(
            Source.SIMULATED, self.schedule, self.schedule.peak_bytes, played, self.timeline
        )


def compile(  # noqa: A001 (the field's word for it)
    module: nn.Module,
    loss: Callable[..., Tensor],
    batch: tuple[Any, Any],
    *,
    strategy: str | Strategy = "eager",
    backend: str = "cpu",
    device: str | DeviceProfile | None = None,
    budget: str | int | None = None,
    cuda_graph: bool = False,
) -> TrainingStep | SimulatedStep:
    """Capture a training step and put it under a memory strategy.

    Args:
        module: the network, in the mode (training or evaluation) in which the step is to run.
        loss: called with the module's output and the targets; returns a scalar.
        batch: example ``(inputs, targets)``, each a tensor or a tuple; the step is made for their shapes.
        strategy: a name (``"layrub_hybrid"``) or an instance.
        backend: ``"cpu"`` and ``"cuda"`` run for real, where module and batch are; ``"simulated"`` plays the step on
            `device`, at any size, allocating nothing; module and batch may then be on the meta device.
        device: for the simulated backend: a name (``"k40m"``) or a profile.
        budget: the most that the step may hold, weights and inputs included: ``"200 MB"`` or bytes.
        cuda_graph: for the cuda backend: replay the step as one CUDA graph, for models bound by launches.

    Raises:
        UnsupportedModel: the module cannot be captured; names the layer.
        UnsupportedStrategy: no such strategy, or it cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget; names what it needs and the lower bound.
        OutOfMemory: the step does not fit the simulated device.
        MembenchError: an unknown backend or device, or no GPU.
    """
    inputs, targets = as_tuple(batch[0]), as_tuple(batch[1])
    workload = Workload(type(module).__name__, module, loss, inputs, targets)
    chosen = find_strategy(strategy)() if isinstance(strategy, str) else strategy
    budget_bytes = None if budget is None else _parse_budget(budget)
    if backend == "simulated":
        profile = _find_device(device)
        cost = RooflineCost(profile, configuration.load("framework", "pytorch").efficiency)
        schedule = plan(capture(workload).graph, chosen, cost, budget_bytes)
        check_capacity(schedule, profile)
        return simulated_step(schedule, profile, cost)
    if backend not in ("cpu", "cuda"):
        raise MembenchError(f"there is no backend {backend!r}; choose one of cpu, cuda, simulated")
    target = real_device(backend)
    if cuda_graph and backend != "cuda":
        raise MembenchError("cuda_graph=True needs backend='cuda'; leave it out")
    elsewhere = [name for name, weight in module.named_parameters() if weight.device != target]
    if elsewhere:
        raise UnsupportedModel(
            elsewhere[0], f"its weight is not on {target}", "move the module there, or simulate it"
        )
    measured = MeasuredCost(target, load_cache(target) if backend == "cuda" else None)
    return build_step(workload, capture(workload), chosen, measured, budget_bytes, cuda_graph=cuda_graph)


def build_step(
    workload: Workload,
    captured: CapturedStep,
    strategy: Strategy,
    cost: MeasuredCost,
    budget_bytes: int | None,
    *,
    cuda_graph: bool = False,
) -> TrainingStep:
    """Put a captured step under a strategy, to be run on the device whose costs are measured."""
    schedule = plan(captured.graph, strategy, cost, budget_bytes)
    backend: TensorBackend
    is_cuda = cost.device.type == "cuda"
    backend = CudaBackend(schedule, cost.device) if is_cuda else CpuBackend(schedule.graph)
    return TrainingStep(workload, captured, schedule, backend, cuda_graph=cuda_graph)


def plan(graph: TaskGraph, strategy: Strategy, cost: CostModel, budget_bytes: int | None) -> Schedule:
    """Return a validated schedule of a graph."""
    schedule = strategy.schedule(cost.annotate(graph), cost, budget_bytes)
    validate(schedule, budget_bytes=budget_bytes)
    return schedule


def check_capacity(schedule: Schedule, device: DeviceProfile) -> None:
    """Refuse a schedule that a virtual device has not the memory for.

    Raises:
        OutOfMemory: its peak exceeds the device's memory.
    """
    if schedule.peak_bytes > device.memory_bytes:
        raise OutOfMemory(needed_bytes=schedule.peak_bytes, capacity_bytes=device.memory_bytes)


def simulated_step(schedule: Schedule, device: DeviceProfile, cost: CostModel) -> SimulatedStep:
    """Play a schedule on a virtual device, whether it has the memory or not."""
    backend = SimulatedBackend(schedule.graph, cost, full_duplex=device.full_duplex)
    return SimulatedStep(schedule, execute(schedule, backend))


def _parse_budget(budget: str | int) -> int:
    try:
        return parse_bytes(budget)
    except ValueError as error:
        raise MembenchError(f"budget: {error}") from error


def real_device(backend: str) -> torch.device:
    """Return where a backend runs.

    Raises:
        MembenchError: it needs a GPU, and there is none.
    """
    if backend == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MembenchError(
            "backend 'cuda' needs a GPU, and torch sees none; choose backend='cpu' or backend='simulated'"
        )
    return torch.device("cuda", torch.cuda.current_device())


def _find_device(device: str | DeviceProfile | None) -> DeviceProfile:
    if isinstance(device, DeviceProfile):
        return device
    if device is None:
        known = ", ".join(configuration.names("device"))
        raise MembenchError(f"the simulated backend needs a device; choose one of {known}")
    profile: DeviceProfile = configuration.load("device", device)
    return profile
