"""Seconds from a device's datasheet rates and a framework's efficiency."""

from membench.cost_model import CostModel
from membench.device import DeviceProfile
from membench.frameworks.base import Efficiency
from membench.task_graph import Kind, Task, TaskGraph

_ARITHMETIC_KINDS = frozenset({Kind.CONVOLUTION, Kind.LINEAR, Kind.ATTENTION})


class RooflineCost(CostModel):
    """Arithmetic-bound tasks take operations over rate, the others bytes over bandwidth.

    Args:
        device: peak rates.
        efficiency: what the framework's kernels reach of them.
    """

    def __init__(self, device: DeviceProfile, efficiency: Efficiency) -> None:
        self._device = device
        self._operations_per_s = device.arithmetic_ops_per_s * efficiency.arithmetic
        self._memory_s_per_byte = efficiency.memory_passes / device.memory_bytes_per_s
        self._normalization_s_per_byte = efficiency.normalization_passes / device.memory_bytes_per_s
        self._launch_s = efficiency.launch_s

    def annotate(self, graph: TaskGraph) -> TaskGraph:
        return graph  # the framework's overhead_bytes hold what it sets aside for its kernels

    def task_time_s(self, task: Task) -> float:
        if task.kind in _ARITHMETIC_KINDS:
            return task.operations / self._operations_per_s
        if task.kind is Kind.BATCH_NORM:
            return task.moved_bytes * self._normalization_s_per_byte
        return task.moved_bytes * self._memory_s_per_byte

    def launch_time_s(self, task: Task) -> float:
        return self._launch_s

    def offload_time_s(self, size_bytes: int) -> float:
        return self._device.copy_latency_s + size_bytes / self._device.device_to_host_bytes_per_s

    def prefetch_time_s(self, size_bytes: int) -> float:
        return self._device.copy_latency_s + size_bytes / self._device.host_to_device_bytes_per_s
