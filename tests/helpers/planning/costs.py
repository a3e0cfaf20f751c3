"""Cost models in round numbers, for tests that follow a schedule by hand."""

from collections.abc import Sequence

from membench.core.graph.codec import ActivationCodec
from membench.core.graph.convolution import Algorithm
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Phase, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.hardware.machine import HostLimit

WORKSPACE_BYTES = 400


class UnitCost(CostModel):
    """Two seconds per task after half a second of launch, three on the host; one per byte copied, half from a disk."""

    full_duplex = True
    host_limit: HostLimit | None = None

    def annotate(self, graph: TaskGraph) -> TaskGraph:
        return graph

    def task_time_s(self, task: Task) -> float:
        return 2.0

    def host_task_time_s(self, task: Task) -> float:
        return 3.0

    def algorithms(self, task: Task) -> tuple[Algorithm, ...]:
        return (Algorithm("", 0, 2.0),)

    def launch_time_s(self, task: Task) -> float:
        return 0.5

    def task_issue_time_s(self, task: Task) -> float:
        return 0.0

    @property
    def copy_issue_time_s(self) -> float:
        return 0.0

    def offload_time_s(self, size_bytes: int) -> float:
        return float(size_bytes)

    def prefetch_time_s(self, size_bytes: int) -> float:
        return float(size_bytes)

    def disk_read_time_s(self, size_bytes: int) -> float:
        return size_bytes / 2

    def disk_write_time_s(self, size_bytes: int) -> float:
        return float(size_bytes)

    def codec_time_s(self, codec: ActivationCodec, size_bytes: int, encoded_bytes: int) -> float:
        return float(size_bytes + encoded_bytes)


class OneEngineCost(UnitCost):
    full_duplex = False


class TwoAlgorithmCost(UnitCost):
    """A convolution runs in 1 s with workspace, or in 2 s without."""

    def algorithms(self, task: Task) -> tuple[Algorithm, ...]:
        return Algorithm("fast", WORKSPACE_BYTES, 1.0), Algorithm("small", 0, 2.0)


class CostOfLayers(UnitCost):
    """Forward tasks of `chains.chain_of_sizes` take these seconds, launches included."""

    def __init__(self, forward_s: Sequence[float]) -> None:
        self._forward_s = forward_s

    def task_time_s(self, task: Task) -> float:
        is_forward = task.name.startswith("forward")
        return self._forward_s[task.layer] - self.launch_time_s(task) if is_forward else 2.0


def forward_s(schedule: Schedule, cost: CostModel) -> float:
    """Return the seconds of all forward tasks, those that run again included."""
    tasks = schedule.graph.tasks
    forward = [task for task in tasks if task.phase is Phase.FORWARD or task.is_recomputed]
    return sum(cost.launch_time_s(task) + cost.task_time_s(task) for task in forward)
