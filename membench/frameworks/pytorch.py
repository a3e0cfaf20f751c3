"""PyTorch: it runs the captured graph itself."""

from typing import ClassVar

from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.frameworks.base import Framework


class PyTorch(Framework):
    """Eager PyTorch."""

    name: ClassVar[str] = "pytorch"

    def captured_on(self, device: DeviceProfile) -> AnyGpu:
        return AnyGpu(device.compute_capability)

    def lower(self, graph: TaskGraph) -> TaskGraph:
        return graph
