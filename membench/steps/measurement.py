"""One step's memory and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from membench.core.record import Source
from membench.core.schedule import COMPUTE_STREAM, AllReduce, Offload, Prefetch, Schedule
from membench.core.timeline import Timeline
from membench.execution.measurement import Throughput
from membench.planning.liveness import average_bytes, copied_bytes


@dataclass(frozen=True)
class StepMeasurement:
    """One step's memory and time, measured or simulated as `source` says.

    Attributes:
        peak_bytes: weights, buffers, inputs, gradients, activations and workspace at the worst moment.
        average_bytes: the predicted memory, averaged over the step's time.
        throughput: synchronised wall time of windows of many steps; a single sample where it was simulated.
        compute_time_s: in which the compute stream was busy.
        copy_time_s: of all copies together; what of it is not exposed was overlapped.
        exchange_time_s: in which some mean over processes was under way.
        exposed_transfer_s: in which copies or exchanges were under way and no task was.
        unique_saved_bytes: size of the blocks that were copied out, each counted once.
        timelines: what ran when, in one run of each of the step's schedules.
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
    timelines: tuple[Timeline, ...]

    @property
    def step_time_s(self) -> float:
        return self.throughput.step_time_s

    @property
    def images_per_s(self) -> float:
        return self.throughput.images_per_s


def step_measurement(
    source: Source, schedule: Schedule, peak_bytes: int, samples: Throughput, timeline: Timeline
) -> StepMeasurement:
    """Put together what was measured or simulated of a step.

    Args:
        peak_bytes: at the worst moment.
        samples: wall time of many steps.
        timeline: of one step.
    """
    copies = {
        i: item.block for i, item in enumerate(schedule.instructions) if isinstance(item, Offload | Prefetch)
    }
    exchanges = {i for i, item in enumerate(schedule.instructions) if isinstance(item, AllReduce)}
    return StepMeasurement(
        source=source,
        peak_bytes=peak_bytes,
        average_bytes=average_bytes(schedule, timeline),
        throughput=samples,
        compute_time_s=timeline.busy_s(COMPUTE_STREAM),
        copy_time_s=sum(span.end_s - span.start_s for span in timeline.spans if span.instruction in copies),
        exchange_time_s=timeline.under_way_s(exchanges),
        exposed_transfer_s=timeline.alone_s(copies.keys() | exchanges),
        offloaded_bytes=copied_bytes(schedule, Offload),
        prefetched_bytes=copied_bytes(schedule, Prefetch),
        unique_saved_bytes=schedule.graph.size_bytes(set(copies.values())),
        timelines=(timeline,),
    )


def one_run(source: Source, schedule: Schedule, timeline: Timeline) -> StepMeasurement:
    """Put together what one run of a schedule tells: its time is the only sample, its peak the predicted one."""
    samples = Throughput(schedule.graph.batch_size, 1, (timeline.step_time_s,))
    return step_measurement(source, schedule, schedule.peak_bytes, samples, timeline)


def whole_step(
    parts: Sequence[tuple[StepMeasurement, int]], samples: Throughput, peak_bytes: int
) -> StepMeasurement:
    """Put together a step that runs in micro-batches.

    Args:
        parts: what one micro-batch holds and takes, and how often it runs.
        samples: wall time of whole steps.
        peak_bytes: of the whole step.
    """

    def total(name: str) -> Any:
        return sum(getattr(part, name) * count for part, count in parts)

    byte_seconds = sum(part.average_bytes * part.step_time_s * count for part, count in parts)
    return StepMeasurement(
        source=parts[0][0].source,
        peak_bytes=peak_bytes,
        average_bytes=byte_seconds / total("step_time_s"),
        throughput=samples,
        compute_time_s=total("compute_time_s"),
        copy_time_s=total("copy_time_s"),
        exchange_time_s=total("exchange_time_s"),
        exposed_transfer_s=total("exposed_transfer_s"),
        offloaded_bytes=total("offloaded_bytes"),
        prefetched_bytes=total("prefetched_bytes"),
        unique_saved_bytes=total("unique_saved_bytes"),
        timelines=tuple(timeline for part, _ in parts for timeline in part.timelines),
    )
