"""A program that recomputes by `torch.utils.checkpoint`, and `joint` in its memory and in its time."""

from dataclasses import dataclass, replace

from membench.advice.device.advice import AdvisedPlan
from membench.advice.device.planning import Target, plan_method
from membench.core.errors import InfeasibleSchedule, OutOfMemory
from membench.core.graph.task_graph import TaskGraph
from membench.planning.rewrites.micro_batch import GraphAt
from membench.strategies.joint.strategy import Joint

TRIALS = 5
"""The most budgets that are tried for the least memory."""


def recomputes(graph: TaskGraph) -> bool:
    """Return whether the program runs a part of the forward pass again."""
    return graph.plain is not None and any(task.is_recomputed for task in graph.plain.tasks)


@dataclass(frozen=True)
class SameMemory:
    """Plans `joint` in the memory that the program takes; a job of `Planners`.

    Attributes:
        peak_bytes, step_time_s: the program's peak and step time.
    """

    target: Target
    batch_size: int
    peak_bytes: int
    step_time_s: float

    def __call__(self, graph_at: GraphAt) -> AdvisedPlan | None:
        """Return the plan; None: there is none on this device."""
        return self._within(graph_at, self.peak_bytes)

    def _within(self, graph_at: GraphAt, budget_bytes: int) -> AdvisedPlan | None:
        target = replace(self.target, budget_bytes=min(budget_bytes, self.target.room_bytes))
        try:
            return plan_method(graph_at, self.batch_size, Joint(), target)
        except (InfeasibleSchedule, OutOfMemory):
            return None


@dataclass(frozen=True)
class SameTime(SameMemory):
    """Plans `joint` in the least memory in which it takes no longer than the program; a job of `Planners`."""

    def __call__(self, graph_at: GraphAt) -> AdvisedPlan | None:
        """Return the plan with the least memory found; None: none takes as little time in the program's memory."""
        least_bytes, best = graph_at(self.batch_size).lower_bound_bytes, None
        most_bytes = self.peak_bytes
        for trial in range(TRIALS):
            budget_bytes = most_bytes if not trial else (least_bytes + most_bytes) // 2
            found = self._within(graph_at, budget_bytes)
            if found is not None and found.step_time_s <= self.step_time_s:
                best, most_bytes = found, min(budget_bytes, found.peak_bytes)
            elif best is None:
                return None
            else:
                least_bytes = budget_bytes
        return best
