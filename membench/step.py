"""The library entry: `membench.compile` turns a training step into one with a memory strategy.

capture -> annotate with the device's costs -> strategy -> validate -> a step that runs or simulates
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from membench import configuration
from membench.backends.cpu import CpuBackend
from membench.backends.simulated import SimulatedBackend
from membench.capture.capture import CapturedStep, capture
from membench.cost.measured import MeasuredCpuCost
from membench.cost.roofline import RooflineCost
from membench.cost_model import CostModel
from membench.device import DeviceProfile
from membench.errors import MembenchError, OutOfMemory, ShapeMismatch, UnsupportedModel
from membench.execution.executor import execute
from membench.execution.measurement import cpu_peak_bytes
from membench.planning.liveness import average_bytes, copied_bytes
from membench.planning.validate import validate
from membench.record import Source
from membench.schedule import COMPUTE_STREAM, Offload, Prefetch, Schedule
from membench.strategies.base import Strategy, find_strategy
from membench.task_graph import RESULT_ROLES, TaskGraph
from membench.timeline import Timeline
from membench.units import parse_bytes
from membench.workload import Workload


@dataclass(frozen=True)
class StepMeasurement:
    """One step's memory and time, measured or simulated as `source` says.

    Attributes:
        peak_bytes: weights, buffers, inputs, gradients, activations and workspace at the worst moment.
        average_bytes: the predicted memory, averaged over the step's time.
        step_time_s: median over the steps timed.
        exposed_transfer_s: how much longer the step took than its compute stream was busy.
        unique_saved_bytes: size of the blocks that were copied out, each counted once.
    """

    source: Source
    peak_bytes: int
    average_bytes: float
    step_time_s: float
    images_per_s: float
    compute_time_s: float
    exposed_transfer_s: float
    offloaded_bytes: int
    prefetched_bytes: int
    unique_saved_bytes: int


class TrainingStep:
    """A captured training step that runs on the CPU under a schedule.

    Calling it computes the loss and leaves gradients in ``.grad`` and statistics in the buffers as
    ``loss.backward()`` would; an optimizer works on top unchanged.

    Attributes:
        schedule: the program; prints as text.
        predicted_peak_bytes: everything that the step holds at its worst moment. Gradients of an earlier step
            that the caller has not cleared come on top.
    """

    def __init__(
        self, workload: Workload, captured: CapturedStep, schedule: Schedule, backend: CpuBackend
    ) -> None:
        self.schedule = schedule
        self.predicted_peak_bytes = schedule.peak_bytes
        self._workload = workload
        self._captured = captured
        self._backend = backend
        self._weights = dict(workload.module.named_parameters())
        self._buffers = dict(workload.module.named_buffers())
        self._state: list[tuple[int, Tensor]] = [
            *((captured.weights[name], weight) for name, weight in self._weights.items()),
            *((captured.buffers[name], buffer) for name, buffer in self._buffers.items()),
        ]
        self._addresses: dict[int, int] = {}
        self._handed_over = [block.index for block in schedule.graph.blocks if block.role in RESULT_ROLES]
        self._handed_over += [block for block in captured.inputs + captured.targets if block is not None]
        for block, constant in captured.constants.items():
            backend.tensors.hold(block, constant)

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        """Run one step on new data and return the loss, a scalar without history.

        Args:
            inputs: a tensor or tuple of tensors, of the captured shapes and dtypes.
            targets: likewise.

        Raises:
            ShapeMismatch: the data does not have the captured shapes and dtypes.
        """
        self._run(_as_tuple(inputs), _as_tuple(targets))
        graph, tensors = self.schedule.graph, self._backend.tensors
        assert graph.loss is not None
        loss = tensors.tensor(graph.loss)
        for name, value in graph.gradients:
            weight = self._weights[name]
            if value is None:
                continue
            gradient = tensors.tensor(value)
            weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        self._release()
        return loss

    def measure(self, *, steps: int = 5) -> StepMeasurement:
        """Measure peak memory in one step, then time others, on the example batch.

        Leaves gradients, buffers and the random generator as they were.
        """
        workload = self._workload
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        generator_state = torch.get_rng_state()

        def run() -> Timeline:
            timeline = self._run(workload.inputs, workload.targets)
            self._release()
            return timeline

        run()  # warm up
        held_bytes = self.schedule.graph.external_bytes
        peak_bytes = held_bytes + cpu_peak_bytes(run)
        timelines = [run() for _ in range(steps)]
        for name, buffer in self._buffers.items():
            buffer.copy_(buffers[name])
        torch.set_rng_state(generator_state)
        return _measurement(Source.MEASURED, self.schedule, peak_bytes, timelines)

    def _run(self, inputs: tuple[Any, ...], targets: tuple[Any, ...]) -> Timeline:
        captured, hold = self._captured, self._backend.tensors.hold
        arguments = _check_arguments("inputs", self._workload.inputs, inputs)
        arguments += _check_arguments("targets", self._workload.targets, targets)
        for block, argument in zip(captured.inputs + captured.targets, arguments, strict=True):
            if block is not None:
                hold(block, argument)
        self._bind_state()
        with torch.no_grad():
            return execute(self.schedule, self._backend)

    def _bind_state(self) -> None:
        """Bind weights and buffers, again where the caller has given one other memory since."""
        for block, tensor in self._state:
            address = tensor.data_ptr()
            if self._addresses.get(block) != address:
                self._addresses[block] = address
                self._backend.tensors.hold(block, tensor.detach())

    def _release(self) -> None:
        """Let go of the arguments and of the results, which belong to the caller now."""
        for block in self._handed_over:
            self._backend.tensors.release(block)


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
        raise MembenchError("a simulated step computes nothing; compile with backend='cpu' to run it")

    def measure(self) -> StepMeasurement:
        """Return what the simulation found."""
        return _measurement(Source.SIMULATED, self.schedule, self.schedule.peak_bytes, [self.timeline])


def compile(  # noqa: A001 (the field's word for it)
    module: nn.Module,
    loss: Callable[..., Tensor],
    batch: tuple[Any, Any],
    *,
    strategy: str | Strategy = "eager",
    backend: str = "cpu",
    device: str | DeviceProfile | None = None,
    budget: str | int | None = None,
) -> TrainingStep | SimulatedStep:
    """Capture a training step and put it under a memory strategy.

    Args:
        module: the network, in the mode (training or evaluation) in which the step is to run.
        loss: called with the module's output and the targets; returns a scalar.
        batch: example ``(inputs, targets)``, each a tensor or a tuple; the step is made for their shapes.
        strategy: a name (``"layrub_hybrid"``) or an instance.
        backend: ``"cpu"`` runs for real; ``"simulated"`` plays the step on `device`, at any size, allocating nothing;
            module and batch may then be on the meta device.
        device: for the simulated backend: a name (``"k40m"``) or a profile.
        budget: the most that the step may hold, weights and inputs included: ``"200 MB"`` or bytes.

    Raises:
        UnsupportedModel: the module cannot be captured; names the layer.
        UnsupportedStrategy: no such strategy, or it cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget; names what it needs and the lower bound.
        OutOfMemory: the step does not fit the simulated device.
        MembenchError: an unknown backend or device.
    """
    inputs, targets = _as_tuple(batch[0]), _as_tuple(batch[1])
    workload = Workload(type(module).__name__, module, loss, inputs, targets)
    chosen = find_strategy(strategy)() if isinstance(strategy, str) else strategy
    budget_bytes = None if budget is None else _parse_budget(budget)
    if backend == "simulated":
        profile = _find_device(device)
        cost = RooflineCost(profile, configuration.load("framework", "pytorch").efficiency)
        schedule = plan(capture(workload).graph, chosen, cost, budget_bytes)
        check_capacity(schedule, profile)
        return simulated_step(schedule, profile, cost)
    if backend != "cpu":
        raise MembenchError(f"there is no backend {backend!r}; choose one of cpu, simulated")
    on_other = [name for name, weight in module.named_parameters() if weight.device.type != "cpu"]
    if on_other:
        raise UnsupportedModel(
            on_other[0], "its weight is not on the CPU", "move the module there, or simulate it"
        )
    return build_step(workload, capture(workload), chosen, MeasuredCpuCost(), budget_bytes)


def build_step(
    workload: Workload, captured: CapturedStep, strategy: Strategy, cost: CostModel, budget_bytes: int | None
) -> TrainingStep:
    """Put a captured step under a strategy, to be run on the CPU."""
    schedule = plan(captured.graph, strategy, cost, budget_bytes)
    return TrainingStep(workload, captured, schedule, CpuBackend(schedule.graph))


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


def _measurement(
    source: Source, schedule: Schedule, peak_bytes: int, timelines: Sequence[Timeline]
) -> StepMeasurement:
    saved = {item.block for item in schedule.instructions if isinstance(item, Offload)}
    step_time_s = statistics.median(timeline.step_time_s for timeline in timelines)
    compute_time_s = statistics.median(timeline.busy_s(COMPUTE_STREAM) for timeline in timelines)
    return StepMeasurement(
        source=source,
        peak_bytes=peak_bytes,
        average_bytes=statistics.fmean(average_bytes(schedule, timeline) for timeline in timelines),
        step_time_s=step_time_s,
        images_per_s=schedule.graph.batch_size / step_time_s,
        compute_time_s=compute_time_s,
        exposed_transfer_s=max(0.0, step_time_s - compute_time_s),
        offloaded_bytes=copied_bytes(schedule, Offload),
        prefetched_bytes=copied_bytes(schedule, Prefetch),
        unique_saved_bytes=sum(schedule.graph.blocks[block].size_bytes for block in saved),
    )


def _as_tuple(argument: Any) -> tuple[Any, ...]:
    return tuple(argument) if isinstance(argument, tuple | list) else (argument,)


def _parse_budget(budget: str | int) -> int:
    try:
        return parse_bytes(budget)
    except ValueError as error:
        raise MembenchError(f"budget: {error}") from error


def _find_device(device: str | DeviceProfile | None) -> DeviceProfile:
    if isinstance(device, DeviceProfile):
        return device
    if device is None:
        known = ", ".join(configuration.names("device"))
        raise MembenchError(f"the simulated backend needs a device; choose one of {known}")
    profile: DeviceProfile = configuration.load("device", device)
    return profile


def _check_arguments(name: str, expected: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments in the captured memory layout, having checked that they are what was captured."""
    if len(given) != len(expected):
        raise ShapeMismatch(f"the step was captured with {len(expected)} {name} and got {len(given)}")
    checked = []
    for position, (captured, argument) in enumerate(zip(expected, given, strict=True)):
        if _kind(captured) != _kind(argument):
            raise ShapeMismatch(
                f"{name}[{position}] is {_kind(argument)}; the step was captured for {_kind(captured)}; "
                "compile again for other shapes"
            )
        if isinstance(argument, Tensor) and argument.stride() != captured.stride():
            argument = torch.empty_like(captured).copy_(argument)
        checked.append(argument)
    return tuple(checked)


def _kind(argument: Any) -> str:
    if isinstance(argument, Tensor):
        return f"a {argument.device.type} tensor of shape {tuple(argument.shape)} and {argument.dtype}"
    return repr(argument)
