"""StepMeasurement: one step's memory and time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    AllReduce,
    Compute,
    Offload,
    Prefetch,
    RepeatedSchedule,
    Schedule,
)
from membench.core.graph.timeline import Timeline
from membench.core.record import Source
from membench.core.result import Result
from membench.execution.measurement import Throughput
from membench.planning.memory.liveness import average_bytes, copied_bytes


@dataclass(frozen=True)
class StepMeasurement(Result, text="membench.steps.measurement_text", picture="membench.pictures.measurement"):
    """One step's memory and time, measured or simulated as `source` says.

    Attributes:
        peak_bytes: peak of weights, buffers, inputs, gradients, activations and workspace together.
        average_bytes: the predicted memory, averaged over the step's time.
        throughput: synchronised wall time of windows of many steps; a single sample if it was simulated.
        compute_time_s: time for which the compute stream was busy.
        copy_time_s: time of all copies together, overlapped or exposed.
        exchange_time_s: time for which at least one all-reduce, or another collective, was running.
        exposed_transfer_s: time for which copies or exchanges were running and no task was.
        unique_saved_bytes: size of the blocks that were offloaded, each counted once.
        plan: the step's schedules, and how often each runs.
        timelines: timelines of one run of each of these schedules.
    """

    source: Source
    peak_bytes: int
    average_bytes: float
    throughput: Throughput
    compute_time_s: float
    copy_time_s: float
    exchange_time_s: float
    exposed_transfer_s: float
    offloaded_bytes: int
    prefetched_bytes: int
    unique_saved_bytes: int
    plan: tuple[RepeatedSchedule, ...] = field(repr=False)
    timelines: tuple[Timeline, ...] = field(repr=False)

    @property
    def step_time_s(self) -> float:
        return self.throughput.step_time_s

    @property
    def images_per_s(self) -> float:
        return self.throughput.images_per_s


_ADDED = (
    "compute_time_s", "copy_time_s", "exchange_time_s", "exposed_transfer_s", "offloaded_bytes", "prefetched_bytes",
    "unique_saved_bytes",
)  # fmt: skip
"""What a step takes as the sum over its runs."""


def one_run(source: Source, schedule: Schedule, timeline: Timeline) -> StepMeasurement:
    """Return the measurement of one run of a schedule: its time is the only sample, its peak the predicted one."""
    copies = {i: item.block for i, item in enumerate(schedule.instructions) if isinstance(item, Offload | Prefetch)}
    exchanges = {i for i, item in enumerate(schedule.instructions) if isinstance(item, AllReduce)}
    exchanges |= collectives_of(schedule)
    return StepMeasurement(
        source=source,
        peak_bytes=schedule.peak_bytes,
        average_bytes=average_bytes(schedule, timeline),
        throughput=Throughput(schedule.graph.batch_size, 1, (timeline.step_time_s,)),
        compute_time_s=timeline.busy_s(COMPUTE_STREAM),
        copy_time_s=sum(span.end_s - span.start_s for span in timeline.spans if span.instruction in copies),
        exchange_time_s=timeline.under_way_s(exchanges),
        exposed_transfer_s=timeline.exposed_s(copies.keys() | exchanges),
        offloaded_bytes=copied_bytes(schedule, Offload),
        prefetched_bytes=copied_bytes(schedule, Prefetch),
        unique_saved_bytes=schedule.graph.size_bytes(set(copies.values())),
        plan=(RepeatedSchedule(schedule),),
        timelines=(timeline,),
    )


def collectives_of(schedule: Schedule) -> frozenset[int]:
    """Return the positions of a schedule's collectives."""
    tasks = schedule.graph.tasks
    return frozenset(
        position
        for position, item in enumerate(schedule.instructions)
        if isinstance(item, Compute) and tasks[item.task].collective
    )


def whole_step(runs: Sequence[tuple[StepMeasurement, int]], samples: Throughput, peak_bytes: int) -> StepMeasurement:
    """Combine the measurements of a step's runs.

    Args:
        runs: measurement of one run of each schedule, and how often it runs.
        samples: wall time of whole steps.
        peak_bytes: peak of the whole step.
    """
    time_s = sum(run.step_time_s * count for run, count in runs)
    byte_seconds = sum(run.average_bytes * run.step_time_s * count for run, count in runs)
    return StepMeasurement(
        source=runs[0][0].source,
        peak_bytes=peak_bytes,
        average_bytes=byte_seconds / time_s if time_s else float(peak_bytes),
        throughput=samples,
        **{name: sum(getattr(run, name) * count for run, count in runs) for name in _ADDED},
        plan=tuple(replace(schedule, count=count) for run, count in runs for schedule in run.plan),
        timelines=tuple(timeline for run, _ in runs for timeline in run.timelines),
    )
