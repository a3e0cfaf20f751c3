"""The library entry `membench.predict`: memory and time of a step on a device, without running or allocating anything.

capture as CUDA runs it -> annotate with the device's costs -> strategy -> validate -> caching allocator, virtual clocks
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.core import configuration
from membench.core.checks import choice
from membench.core.device import DeviceProfile
from membench.core.errors import OutOfMemory
from membench.core.precision import Precision
from membench.core.schedule import RepeatedSchedule
from membench.core.task_graph import TaskGraph
from membench.core.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.planning.holders import held_at_peak_bytes
from membench.planning.reserved_memory import reserved_memory
from membench.planning.segment_allocator import SegmentAllocator
from membench.steps.arguments import as_bytes, as_device, as_strategy, workload_of
from membench.steps.plan import plan_step
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import Strategy


@dataclass(frozen=True)
class Prediction:
    """Predicted memory and time of a step on a device. All of it is simulated.

    Attributes:
        device: name of the device.
        batch_size: samples of the step.
        allocated_bytes: peak of the tensors and workspaces that the step holds.
        reserved_bytes: peak of what PyTorch's caching allocator holds for them on the device, fragmentation included; of a
            step that does not fit, on a device that has the memory.
        used_bytes: `reserved_bytes` and the context, as nvidia-smi shows.
        step_time_s: seconds of a step, on a device that has the memory if the step does not fit.
        fits: whether the device has the memory, after the caching allocator has returned what it does not use.
        capacity_bytes: memory of the device.
        parts_bytes: what the allocated peak consists of: weights, gradients, activations ...; adds up to `allocated_bytes`.
    """

    device: str
    batch_size: int
    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int
    step_time_s: float
    fits: bool
    capacity_bytes: int
    parts_bytes: Mapping[str, int]

    @property
    def samples_per_s(self) -> float:
        """Samples of the batch per second."""
        return self.batch_size / self.step_time_s


class Predictor:
    """A step that is captured once, as CUDA runs it, and predicted on any number of devices.

    Args:
        workload: on any device, ``meta`` included; its tensors are only read.
        strategy: the memory-saving method.
        budget_bytes: see `predict`.
    """

    def __init__(self, workload: Workload, strategy: Strategy, budget_bytes: int | None = None) -> None:
        self._captures = Captures(workload, torch.device("cuda"))
        self._strategy = strategy
        self._budget_bytes = budget_bytes

    @property
    def graph(self) -> TaskGraph:
        """The captured step of the whole batch."""
        return self._captures.graph_at(self._captures.workload.batch_size)

    def on(self, device: DeviceProfile) -> Prediction:
        """Return the prediction for a device; see `predict`."""
        cost = RooflineCost(device, configuration.load("framework", "pytorch").efficiency)
        batch_size = self._captures.workload.batch_size
        runs = plan_step(self._captures.graph_at, batch_size, self._strategy, cost, self._budget_bytes)
        largest = max((run.schedule for run in runs), key=lambda schedule: schedule.peak_bytes)
        context_bytes = device.context_bytes or 0
        reserved_bytes, fits = _reserved_bytes(runs, device.memory_bytes - context_bytes)
        return Prediction(
            device=device.name,
            batch_size=batch_size,
            allocated_bytes=largest.peak_bytes,
            reserved_bytes=reserved_bytes,
            used_bytes=reserved_bytes + context_bytes,
            step_time_s=simulated_step(runs, cost).step_time_s,
            fits=fits,
            capacity_bytes=device.memory_bytes,
            parts_bytes=held_at_peak_bytes(largest),
        )


def _reserved_bytes(runs: tuple[RepeatedSchedule, ...], capacity_bytes: int) -> tuple[int, bool]:
    """Return the peak of the reserved memory, and whether the device has it."""
    for capacity in (capacity_bytes, None):
        try:
            allocator = SegmentAllocator(capacity)
            memory = reserved_memory(runs, allocator, workspace_bytes=lambda task: task.workspace_bytes)
        except OutOfMemory:
            continue
        return memory.reserved_bytes, capacity is not None
    raise AssertionError("an allocator without a capacity has room")


def predict(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: tuple[Any, Any],
    *,
    device: str | DeviceProfile,
    precision: str | Precision | None = None,
    strategy: str | Strategy = "eager",
    budget: str | float | None = None,
    channels_last: bool = False,
) -> Prediction:
    """Predict the memory and the time of a step of training or inference on a device that need not be at hand.

    Nothing is allocated: module and batch may be on the meta device (``with torch.device("meta")``), and weights elsewhere
    are only read.

    Args:
        module, loss, batch: see `membench.compile`.
        device: a name (``"rtx4090"``) or a profile.
        precision: ``"fp32"``, ``"tf32"``, ``"bf16"``, ``"fp16"``, ``"amp_bf16"`` or ``"amp_fp16"``; None: as the module is.
        strategy: a name (``"layrub_hybrid"``) or an instance; by default plain PyTorch.
        budget: the most that the strategy may hold, ``"20 GB"`` or a number of bytes.
        channels_last: weights and inputs of four dimensions have that memory format.

    Raises:
        UnsupportedModel: the module cannot be captured; names the layer.
        UnsupportedStrategy: there is no such strategy, or it cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget.
        MembenchError: an argument is invalid.
    """
    formats = None if precision is None else choice(Precision, "precision", precision)
    workload = replace(workload_of(module, loss, batch), precision=formats, channels_last=channels_last)
    return Predictor(workload, as_strategy(strategy), as_bytes(budget)).on(as_device(device))
