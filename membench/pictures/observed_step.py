"""ObservedStep: one step for pictures and traces, as one run of a schedule or one for each micro-batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from membench.core.graph.schedule import Compute, Schedule, Work
from membench.core.graph.task_graph import AFTER_THE_LOSS
from membench.core.graph.timeline import Span, Timeline
from membench.core.record import Source
from membench.core.result import Result
from membench.steps.measurement import StepMeasurement


@dataclass(frozen=True)
class RepeatedRun:
    """A schedule and the simulated or measured timeline of its runs.

    Attributes:
        timeline: timeline of one run, which stands for all.
        count: number of runs in the step.
    """

    schedule: Schedule
    timeline: Timeline
    count: int = 1

    def work(self, span: Span) -> Work:
        """Return the instruction to which a span belongs."""
        instruction = self.schedule.instructions[span.instruction]
        assert isinstance(instruction, Work), f"instruction {span.instruction} takes no time"
        return instruction

    def activity(self, span: Span) -> str:
        """Return the kind of a span's work: the pass of the step, or the kind of instruction."""
        work = self.work(span)
        if not isinstance(work, Compute):
            return type(work).__name__.lower()
        task = self.schedule.graph.tasks[work.task]
        if task.is_recomputed:
            return "recomputed"
        return str(task.phase) if task.phase in AFTER_THE_LOSS else "forward"

    def label(self, span: Span) -> str:
        """Return the layer of a span's work, or the name of a block without a layer."""
        work, graph = self.work(span), self.schedule.graph
        if isinstance(work, Compute):
            return graph.layers[graph.tasks[work.task].layer]
        block = graph.blocks[work.block]
        return graph.layers[block.layer] if block.layer >= 0 else block.name


class PlacedSpan(NamedTuple):
    """A span of the step and its run.

    Attributes:
        position: position of the run among all runs of the step, from 0.
        span: in seconds since the step began.
    """

    run: RepeatedRun
    position: int
    span: Span


@dataclass(frozen=True)
class ObservedStep(Result, text="membench.pictures.timeline_text", picture="membench.pictures.picture"):
    """One step: runs of schedules one after another, each repeated by its count.

    Attributes:
        title: model, batch size, strategy and device.
        capacity_bytes: the device's memory, if it is known.
        measured_peak_bytes: the allocator's peak, if the step was measured; the schedules have the predicted one.
    """

    title: str
    runs: tuple[RepeatedRun, ...]
    capacity_bytes: int | None = None
    measured_peak_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        return max(run.schedule.peak_bytes for run in self.runs)

    @property
    def step_time_s(self) -> float:
        return sum(run.timeline.step_time_s * run.count for run in self.runs)

    @property
    def starts_s(self) -> list[float]:
        """Start of each run of a schedule."""
        times_s = (run.timeline.step_time_s for run in self.runs for _ in range(run.count))
        return list(accumulate(times_s, initial=0.0))[:-1]

    @property
    def streams(self) -> list[str]:
        """The streams in the order of their first use."""
        return list(dict.fromkeys(span.stream for run in self.runs for span in run.timeline.spans))

    def spans(self) -> Iterator[PlacedSpan]:
        """Yield all spans, run after run."""
        runs = [run for run in self.runs for _ in range(run.count)]
        for position, (run, start_s) in enumerate(zip(runs, self.starts_s, strict=True)):
            for span in run.timeline.spans:
                shifted = span._replace(start_s=start_s + span.start_s, end_s=start_s + span.end_s)
                yield PlacedSpan(run, position, shifted)


def timeline(measurement: StepMeasurement, title: str = "", *, capacity_bytes: int | None = None) -> ObservedStep:
    """Return the timeline of a step that was measured or simulated.

    Args:
        title: what the step is, in words.
        capacity_bytes: memory of the device; None: not shown.
    """
    pairs = zip(measurement.plan, measurement.timelines, strict=True)
    runs = tuple(RepeatedRun(run.schedule, timeline, run.count) for run, timeline in pairs)
    measured_bytes = measurement.peak_bytes if measurement.source is Source.MEASURED else None
    named = title or f"batch {measurement.throughput.images_per_step}, {measurement.source}"
    return ObservedStep(named, runs, capacity_bytes, measured_bytes)
