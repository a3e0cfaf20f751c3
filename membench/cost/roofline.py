"""Seconds from a device's datasheet rates and a framework's efficiency."""

from membench.convolution import Algorithm
from membench.cost_model import CostModel
from membench.device import DeviceProfile
from membench.efficiency import Efficiency
from membench.task_graph import Kind, Task, TaskGraph

ARITHMETIC_KINDS = frozenset({Kind.CONVOLUTION, Kind.LINEAR, Kind.ATTENTION})
"""Bound by the arithmetic rate; every other kind is bound by the bandwidth of device memory."""


class RooflineCost(CostModel):
    """Prices a task by the one rate that bounds its kind.

    Seconds of a task are its floating-point operations over the reached arithmetic rate (operations/s), or the bytes
    that it moves over the reached bandwidth (bytes/s). Seconds of a copy are latency plus bytes over the link's rate.

    Args:
        device: peak rates, and what pinned copies reach.
        efficiency: fractions of these peaks that the framework's kernels reach.
    """

    def __init__(self, device: DeviceProfile, efficiency: Efficiency) -> None:
        self._device = device
        self._efficiency = efficiency
        self._operations_per_s = device.arithmetic_ops_per_s * efficiency.arithmetic
        self._memory_bytes_per_s = device.memory_bytes_per_s * efficiency.memory

    def annotate(self, graph: TaskGraph) -> TaskGraph:
        """Return the graph as it is: a framework's overhead holds what it sets aside for its kernels."""
        return graph

    def task_time_s(self, task: Task) -> float:
        if task.kind in ARITHMETIC_KINDS:
            return task.operations / self._operations_per_s
        return task.moved_bytes / self._memory_bytes_per_s

    def algorithms(self, task: Task) -> tuple[Algorithm, ...]:
        return (Algorithm("", task.workspace_bytes, self.task_time_s(task)),)

    def launch_time_s(self, task: Task) -> float:
        """Return the seconds before a task's work; the step's own come before its first task."""
        return self._efficiency.launch_s + (self._efficiency.step_s if task.index == 0 else 0.0)

    def offload_time_s(self, size_bytes: int) -> float:
        return self._device.copy_latency_s + size_bytes / self._device.device_to_host_bytes_per_s

    def prefetch_time_s(self, size_bytes: int) -> float:
        return self._device.copy_latency_s + size_bytes / self._device.host_to_device_bytes_per_s
