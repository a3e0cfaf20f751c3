"""SimulatedStep: a step on a simulated device."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from membench.backends.mailbox import Mailbox
from membench.backends.simulated import SimulatedBackend
from membench.core.errors import MembenchError, OutOfMemory
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.graph.timeline import Timeline
from membench.core.hardware.cluster import SINGLE_DEVICE, Cluster
from membench.core.hardware.cost_model import CostModel
from membench.core.hardware.device import DeviceProfile
from membench.core.record import Source
from membench.execution.executor import execute
from membench.execution.measurement import Throughput
from membench.planning.parallel.exchange import Exchange, exchange_in_last_run
from membench.steps.measurement import StepMeasurement, one_run, whole_step


class SimulatedStep:
    """A captured step of training or inference on a simulated device; nothing is allocated.

    Attributes:
        plan: the step's schedules, and how often each runs; each prints as text.
        predicted_peak_bytes: the peak of all memory that a device would hold.
        step_time_s: time of all runs of a step, one after another.
        timelines: timelines of one run of each schedule of the plan.
    """

    def __init__(self, plan: tuple[RepeatedSchedule, ...], timelines: tuple[Timeline, ...], *, devices: int) -> None:
        self.plan = plan
        self._devices = devices
        self.step_time_s = sum(timeline.step_time_s * run.count for run, timeline in zip(plan, timelines, strict=True))
        self.predicted_peak_bytes = max(run.schedule.peak_bytes for run in plan)
        self.timelines = timelines

    def __call__(self, inputs: Any, targets: Any = ()) -> Any:
        raise MembenchError("a simulated step computes nothing; compile with backend='cpu' or backend='cuda' to run it")

    def measure(self) -> StepMeasurement:
        """Return the simulated memory and times of one device, and the throughput of all."""
        runs = [
            (one_run(Source.SIMULATED, run.schedule, timeline), run.count)
            for run, timeline in zip(self.plan, self.timelines, strict=True)
        ]
        images = self._devices * sum(run.samples for run in self.plan)
        samples = Throughput(images, 1, (self.step_time_s,))
        return whole_step(runs, samples, self.predicted_peak_bytes)


def check_capacity(runs: tuple[RepeatedSchedule, ...], device: DeviceProfile) -> None:
    """Refuse schedules that do not fit the memory of a simulated device.

    Raises:
        OutOfMemory: a peak exceeds the device's memory.
    """
    needed_bytes = max(run.schedule.peak_bytes for run in runs)
    if needed_bytes > device.memory_bytes:
        raise OutOfMemory(needed_bytes=needed_bytes, capacity_bytes=device.memory_bytes)


def simulated_pipeline(ranks: Sequence[tuple[RepeatedSchedule, ...]], cost: CostModel) -> tuple[SimulatedStep, ...]:
    """Simulate the steps of ranks that send messages to each other, together, without checking their memory.

    Raises:
        MembenchError: a rank waits for a message that no rank sends.
    """
    mailbox = Mailbox(len(ranks))

    def simulated(runs: tuple[RepeatedSchedule, ...]) -> SimulatedStep:
        with mailbox.rank():
            return simulated_step(runs, cost, mailbox=mailbox)

    with ThreadPoolExecutor(len(ranks)) as threads:
        return tuple(threads.map(simulated, ranks))


def cluster_step(
    local: tuple[RepeatedSchedule, ...], cost: CostModel, cluster: Cluster, exchange: Exchange | None
) -> SimulatedStep:
    """Simulate schedules of one device's share on each device of a cluster, without checking its memory.

    Args:
        local: planned without an exchange.
        cost: see `simulated_step`.
        exchange: how several devices average their gradients; None: as they are made.
    """
    runs = local if cluster.devices == 1 else exchange_in_last_run(local, exchange or Exchange.AS_MADE)
    return simulated_step(runs, cost, cluster)


def simulated_step(
    runs: tuple[RepeatedSchedule, ...],
    cost: CostModel,
    cluster: Cluster = SINGLE_DEVICE,
    mailbox: Mailbox | None = None,
) -> SimulatedStep:
    """Simulate schedules on a device, without checking its memory.

    Args:
        cost: cost model of the device while all devices of its cluster copy.
        mailbox: see `SimulatedBackend`.
    """
    timelines = []
    for run in runs:
        backend = SimulatedBackend(run.schedule.graph, cost, cluster, mailbox)
        timelines.append(execute(run.schedule, backend))
    return SimulatedStep(runs, tuple(timelines), devices=cluster.devices)
