"""One run of a schedule, as pictures and traces show it."""

from dataclasses import dataclass

from membench.planning.recompute import is_recomputed
from membench.schedule import Compute, Schedule, Work
from membench.task_graph import Phase
from membench.timeline import Span, Timeline


@dataclass(frozen=True)
class Run:
    """A schedule and when its instructions ran, simulated or measured.

    Attributes:
        title: model, batch size, strategy, and where it ran.
        timeline: of one run of the schedule.
        capacity_bytes: the device's memory, where it is known.
        measured_peak_bytes: the allocator's, where the run was measured; the schedule has the predicted one.
    """

    title: str
    schedule: Schedule
    timeline: Timeline
    capacity_bytes: int | None = None
    measured_peak_bytes: int | None = None

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
        layer = graph.tasks[work.task].layer if isinstance(work, Compute) else graph.blocks[work.block].layer
        return (
            graph.layers[layer] if layer >= 0 or isinstance(work, Compute) else graph.blocks[work.block].name
        )
