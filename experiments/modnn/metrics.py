"""moDNN's own numbers: of a step, and of the host that adds gradients up."""

from membench.core import configuration
from membench.core.graph.timeline import Timeline
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.device import DeviceProfile
from membench.core.units import GIB
from membench.lab.papers.reading.experiment import Paper, PaperCell
from membench.steps.plan import Runs
from membench.sweep.cells.metrics import Metrics


def step_metrics(plan: Runs, timelines: tuple[Timeline, ...], device: DeviceProfile | None) -> Metrics:
    """Return the memory of a step if even weights may leave the device (Section 7.1, the second lower bound)."""
    graph = plan[0].schedule.graph
    needed_bytes = (graph.size_bytes({*task.reads, *task.writes}) + task.workspace_bytes for task in graph.tasks)
    return {"neediest_task_bytes": max(needed_bytes)}


def sum_metrics(paper: Paper, cell: PaperCell) -> Metrics:
    """Return the seconds in which the host adds up 1 GB of gradients of each device (Section 6.2), the copies aside."""
    options = configuration.read("cluster", paper.clusters[cell.device])
    cluster: Cluster = configuration.instantiate(options | paper.systems[cell.system].get("cluster", {}))
    return {"sum_time_s_per_gb": cluster.sum_time_s(GIB)}
