"""SimulatedStep: a training step that is played on a virtual device."""

from typing import Any

from membench.backends.simulated import SimulatedBackend
from membench.core.cluster import ALONE, Cluster
from membench.core.cost_model import CostModel
from membench.core.device import DeviceProfile
from membench.core.errors import MembenchError, OutOfMemory
from membench.core.record import Source
from membench.core.schedule import RepeatedSchedule
from membench.core.timeline import Timeline
from membench.execution.executor import execute
from membench.execution.measurement import Throughput
from membench.steps.measurement import StepMeasurement, one_run, whole_step


class SimulatedStep:
    """A captured training step that is played on a virtual device; nothing is allocated.

    Attributes:
        plan: its schedules, and how often each runs in a step; each prints as text.
        predicted_peak_bytes: everything that a device would hold at its worst moment.
        step_time_s: of all runs of a step, one after another.
        timelines: what would run when, on which stream, in one run of each schedule of the plan.
    """

    def __init__(
        self, plan: tuple[RepeatedSchedule, ...], timelines: tuple[Timeline, ...], *, devices: int
    ) -> None:
        self.plan = plan
        self._devices = devices
        self.step_time_s = sum(
            timeline.step_time_s * part.count for part, timeline in zip(plan, timelines, strict=True)
        )
        self.predicted_peak_bytes = max(part.schedule.peak_bytes for part in plan)
        self.timelines = timelines

    def __call__(self, inputs: Any, targets: Any = ()) -> Any:
        raise MembenchError(
            "a simulated step computes nothing; compile with backend='cpu' or backend='cuda' to run it"
        )

    def measure(self) -> StepMeasurement:
        """Return what the simulation found: memory and times of one device, throughput of all."""
        parts = [
            (one_run(Source.SIMULATED, part.schedule, timeline), part.count)
            for part, timeline in zip(self.plan, self.timelines, strict=True)
        ]
        images = self._devices * sum(part.samples for part in self.plan)
        samples = Throughput(images, 1, (self.step_time_s,))
        return whole_step(parts, samples, self.predicted_peak_bytes)


def check_capacity(parts: tuple[RepeatedSchedule, ...], device: DeviceProfile) -> None:
    """Refuse schedules that a virtual device has not the memory for.

    Raises:
        OutOfMemory: a peak exceeds the device's memory.
    """
    needed_bytes = max(part.schedule.peak_bytes for part in parts)
    if needed_bytes > device.memory_bytes:
        raise OutOfMemory(needed_bytes=needed_bytes, capacity_bytes=device.memory_bytes)


def simulated_step(
    parts: tuple[RepeatedSchedule, ...], cost: CostModel, cluster: Cluster = ALONE
) -> SimulatedStep:
    """Play schedules on a virtual device, whether it has the memory or not.

    Args:
        cost: of the device while all others of its cluster copy too.
    """
    timelines = []
    for part in parts:
        backend = SimulatedBackend(part.schedule.graph, cost, cluster)
        timelines.append(execute(part.schedule, backend))
    return SimulatedStep(parts, tuple(timelines), devices=cluster.devices)
