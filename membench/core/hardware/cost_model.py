"""CostModel: the seconds and workspaces that plans and simulations are based on."""

from abc import ABC, abstractmethod

from membench.core.graph.codec import ActivationCodec
from membench.core.graph.convolution import Algorithm
from membench.core.graph.task_graph import Task, TaskGraph
from membench.core.hardware.machine import HostLimit


class CostModel(ABC):
    """Durations of tasks and copies, and workspaces, on one device."""

    @property
    @abstractmethod
    def full_duplex(self) -> bool:
        """Whether copies in both directions overlap."""

    @property
    @abstractmethod
    def host_limit(self) -> HostLimit | None:
        """What a step may hold in host memory and on the disk; None: any number of bytes in host memory."""

    @abstractmethod
    def annotate(self, graph: TaskGraph) -> TaskGraph:
        """Return the graph with the workspace that each task needs on this device."""

    @abstractmethod
    def task_time_s(self, task: Task) -> float:
        """Return the seconds that a task keeps the device busy with its algorithm."""

    @abstractmethod
    def host_task_time_s(self, task: Task) -> float:
        """Return the seconds that a task of the host (`Task.on_host`) keeps the processor busy."""

    @abstractmethod
    def algorithms(self, task: Task) -> tuple[Algorithm, ...]:
        """Return the algorithms that can run a task, the fastest first; at least one."""

    def task_share(self, task: Task) -> float:
        """Return the share of the device that a task's kernels keep busy; another stream's have the rest."""
        return 1.0

    @abstractmethod
    def launch_time_s(self, task: Task) -> float:
        """Return the seconds before a task's work starts, during which another stream's task may run."""

    @abstractmethod
    def task_issue_time_s(self, task: Task) -> float:
        """Return the seconds that the host spends on issuing a task, while the device does earlier work."""

    @property
    @abstractmethod
    def copy_issue_time_s(self) -> float:
        """Seconds that the host spends on issuing a copy."""

    @property
    def waits_between_passes(self) -> bool:
        """Whether the host waits for the device before each pass, forward or backward, and behind each message."""
        return False

    @abstractmethod
    def offload_time_s(self, size_bytes: int) -> float:
        """Return the seconds of a copy from the device to the host."""

    @abstractmethod
    def prefetch_time_s(self, size_bytes: int) -> float:
        """Return the seconds of a copy from the host to the device."""

    @abstractmethod
    def disk_read_time_s(self, size_bytes: int) -> float:
        """Return the seconds of a copy from the disk to the host."""

    @abstractmethod
    def disk_write_time_s(self, size_bytes: int) -> float:
        """Return the seconds of a copy from the host to the disk."""

    def copy_delay_s(self, size_bytes: int) -> float:
        """Return the seconds by which a copy delays concurrent tasks: 0 where an engine of its own copies."""
        return 0.0

    @property
    def collective_share(self) -> float:
        """The share of a collective's time by which it makes kernels longer that run at the same time."""
        return 0.0

    @abstractmethod
    def codec_time_s(self, codec: ActivationCodec, size_bytes: int, encoded_bytes: int) -> float:
        """Return the seconds of encoding an activation of that size into so many bytes, or of decoding it."""

    def codec_share(self, codec: ActivationCodec) -> float:
        """Return the share of the device that an encoding's streams keep busy together; kernels have the rest."""
        return 1.0
