"""The library entry `membench.predict`: memory and time of a step on a device, without running or allocating anything.

capture -> annotate with the device's costs -> strategy -> validate -> memory and virtual clocks
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.core import configuration
from membench.core.device import DeviceProfile
from membench.core.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.planning.holders import held_at_peak_bytes
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
        step_time_s: seconds of a step, on a device like this one that has the memory if the step does not fit.
        capacity_bytes: memory of the device.
        parts_bytes: what the allocated peak consists of: weights, gradients, activations ...; adds up to `allocated_bytes`.
    """

    device: str
    batch_size: int
    allocated_bytes: int
    step_time_s: float
    capacity_bytes: int
    parts_bytes: Mapping[str, int]

    @property
    def fits(self) -> bool:
        """Whether the device has the memory that the step needs."""
        return self.allocated_bytes <= self.capacity_bytes

    @property
    def samples_per_s(self) -> float:
        """Samples of the batch per second."""
        return self.batch_size / self.step_time_s


class Predictor:
    """A step that is captured once and predicted on any number of devices.

    Args:
        workload: on any device, ``meta`` included; its tensors are only read.
        strategy: the memory-saving method, by default plain PyTorch.
        budget_bytes: see `predict`.
    """

    def __init__(self, workload: Workload, strategy: Strategy, budget_bytes: int | None = None) -> None:
        self._captures = Captures(workload)
        self._strategy = strategy
        self._budget_bytes = budget_bytes

    def on(self, device: DeviceProfile) -> Prediction:
        """Return the prediction for a device; see `predict`."""
        cost = RooflineCost(device, configuration.load("framework", "pytorch").efficiency)
        batch_size = self._captures.workload.batch_size
        runs = plan_step(self._captures.graph_at, batch_size, self._strategy, cost, self._budget_bytes)
        step = simulated_step(runs, cost)
        largest = max((run.schedule for run in runs), key=lambda schedule: schedule.peak_bytes)
        return Prediction(
            device=device.name,
            batch_size=batch_size,
            allocated_bytes=largest.peak_bytes,
            step_time_s=step.step_time_s,
            capacity_bytes=device.memory_bytes,
            parts_bytes=held_at_peak_bytes(largest),
        )


def predict(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: tuple[Any, Any],
    *,
    device: str | DeviceProfile,
    strategy: str | Strategy = "eager",
    budget: str | float | None = None,
) -> Prediction:
    """Predict the memory and the time of a step of training or inference on a device that need not be at hand.

    Nothing is allocated: module and batch may be on the meta device (``with torch.device("meta")``), and weights elsewhere
    are only read.

    Args:
        module, loss, batch: see `membench.compile`.
        device: a name (``"rtx4090"``) or a profile.
        strategy: a name (``"layrub_hybrid"``) or an instance; by default plain PyTorch.
        budget: the most that the strategy may hold, ``"20 GB"`` or a number of bytes.

    Raises:
        UnsupportedModel: the module cannot be captured; names the layer.
        UnsupportedStrategy: there is no such strategy, or it cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget.
        MembenchError: an argument is invalid.
    """
    workload, chosen = workload_of(module, loss, batch), as_strategy(strategy)
    return Predictor(workload, chosen, as_bytes(budget)).on(as_device(device))
