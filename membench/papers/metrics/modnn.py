"""moDNN's own numbers of a step."""

from membench.core.device import DeviceProfile
from membench.core.timeline import Timeline
from membench.sweep.metrics import Metrics, Plan


def step_metrics(plan: Plan, timelines: tuple[Timeline, ...], device: DeviceProfile | None) -> Metrics:
    """Return the memory that a step needs if even weights may leave the device (Section 7.1, the second lower bound)."""
    graph = plan[0].schedule.graph
    needed_bytes = (
        graph.size_bytes({*task.reads, *task.writes}) + task.workspace_bytes for task in graph.tasks
    )
    return {"neediest_task_bytes": max(needed_bytes)}
