"""One run of a schedule, as pictures and traces show it."""

from dataclasses import dataclass

from membench.planning.recompute import is_recomputed
from membench.schedule import AllReduce, Compute, Instruction, Offload, Prefetch, Schedule
from membench.task_graph import Phase
from membench.timeline import Timeline


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

    def activity(self, instruction: Instruction) -> str:
        """Return what kind of work an instruction is: a pass of the step, or a copy by its kind."""
        if not isinstance(instruction, Compute):
            return type(instruction).__name__.lower()
        task = self.schedule.graph.tasks[instruction.task]
        if is_recomputed(task):
            return "recomputed"
        return "backward" if task.phase is Phase.BACKWARD else "forward"

    def label(self, instruction: Instruction) -> str:
        """Return the layer that an instruction works for, or what it is where it has none."""
        graph = self.schedule.graph
        match instruction:
            case Compute(task):
                return graph.layers[graph.tasks[task].layer]
            case Offload(block) | Prefetch(block) | AllReduce(block):
                layer = graph.blocks[block].layer
                return graph.layers[layer] if layer >= 0 else graph.blocks[block].name
        return self.activity(instruction)
