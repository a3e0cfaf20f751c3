"""One step, as pictures and traces show it: one run of a schedule, or one for each micro-batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from membench.core.schedule import Compute, Schedule, Work
from membench.core.task_graph import Phase
from membench.core.timeline import Span, Timeline
from membench.planning.recompute import is_recomputed


@dataclass(frozen=True)
class Part:
    """A schedule and when its instructions ran, simulated or measured.

    Attributes:
        timeline: of one run of the schedule.
        count: how often it runs in the step.
    """

    schedule: Schedule
    timeline: Timeline
    count: int = 1

    def work(self, span: Span) -> Work:
        """Return the instruction whose time a span is."""
        instruction = self.schedule.instructions[span.instruction]
        assert isinstance(instruction, Work), f"instruction {span.instruction} takes no time"
        return instruction

    def activity(self, span: Span) -> str:
        """Return what kind of work was done: a pass of the step, or the instruction's kind."""
        work = self.work(span)
        if not isinstance(work, Compute):
            return type(work).__name__.lower()
        task = self.schedule.graph.tasks[work.task]
        if is_recomputed(task):
            return "recomputed"
        return "backward" if task.phase is Phase.BACKWARD else "forward"

    def label(self, span: Span) -> str:
        """Return the layer that was worked for; of a block that belongs to none, its name."""
        work, graph = self.work(span), self.schedule.graph
        if isinstance(work, Compute):
            return graph.layers[graph.tasks[work.task].layer]
        block = graph.blocks[work.block]
        return graph.layers[block.layer] if block.layer >= 0 else block.name


class PlacedSpan(NamedTuple):
    """A span of the step and the part to which it belongs.

    Attributes:
        run: which of the step's runs of schedules it is, from 0.
        span: in seconds since the step began.
    """

    part: Part
    run: int
    span: Span


@dataclass(frozen=True)
class Run:
    """One step: its parts one after another, each as often as it says.

    Attributes:
        title: model, batch size, strategy, and where it ran.
        capacity_bytes: the device's memory, where it is known.
        measured_peak_bytes: the allocator's, where the run was measured; the schedules have the predicted one.
    """

    title: str
    parts: tuple[Part, ...]
    capacity_bytes: int | None = None
    measured_peak_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        return max(part.schedule.peak_bytes for part in self.parts)

    @property
    def step_time_s(self) -> float:
        return sum(part.timeline.step_time_s * part.count for part in self.parts)

    @property
    def starts_s(self) -> list[float]:
        """When each run of a schedule begins."""
        times_s = (part.timeline.step_time_s for part in self.parts for _ in range(part.count))
        return list(accumulate(times_s, initial=0.0))[:-1]

    @property
    def streams(self) -> list[str]:
        """The streams in the order of their first use."""
        return list(dict.fromkeys(span.stream for part in self.parts for span in part.timeline.spans))

    def spans(self) -> Iterator[PlacedSpan]:
        """Yield all that took time, run after run."""
        parts = [part for part in self.parts for _ in range(part.count)]
        for run, (part, start_s) in enumerate(zip(parts, self.starts_s, strict=True)):
            for span in part.timeline.spans:
                shifted = span._replace(start_s=start_s + span.start_s, end_s=start_s + span.end_s)
                yield PlacedSpan(part, run, shifted)
