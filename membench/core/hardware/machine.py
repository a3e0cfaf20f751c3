"""Machine: the processor, the memory and the disk behind a device; and what a step may hold there."""

from dataclasses import dataclass, replace

from membench.core.checks import COUNT, POSITIVE, check
from membench.core.graph.task_graph import Role


@dataclass(frozen=True)
class Machine:
    """Capacities and rates of the machine that devices are in, for all of its ranks together.

    Attributes:
        memory_bytes: host memory that a program can have.
        memory_bytes_per_s: host memory that an optimizer's update on all cores reads and writes per second.
        disk_bytes: size of the file in which blocks are kept; None: there is no disk for them.
        disk_read_bytes_per_s, disk_write_bytes_per_s: reached by large sequential requests; None as `disk_bytes`.
        ranks: that capacities and rates have been divided among, see `share_of`.

    Raises:
        MembenchError: a capacity or a rate is not positive.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    disk_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    ranks: int = 1

    def __post_init__(self) -> None:
        check(COUNT, memory_bytes=self.memory_bytes, ranks=self.ranks)
        check(POSITIVE, memory_bytes_per_s=self.memory_bytes_per_s)
        names = ("disk_bytes", "disk_read_bytes_per_s", "disk_write_bytes_per_s")
        check(POSITIVE, **{name: value for name in names if (value := getattr(self, name)) is not None})

    def share_of(self, ranks: int) -> "Machine":
        """Return what one of several ranks has of the machine while all of them use it, each as much as another."""
        return replace(
            self,
            memory_bytes=max(1, self.memory_bytes // ranks),
            memory_bytes_per_s=self.memory_bytes_per_s / ranks,
            disk_bytes=self.disk_bytes and self.disk_bytes // ranks,
            disk_read_bytes_per_s=self.disk_read_bytes_per_s and self.disk_read_bytes_per_s / ranks,
            disk_write_bytes_per_s=self.disk_write_bytes_per_s and self.disk_write_bytes_per_s / ranks,
            ranks=self.ranks * ranks,
        )


ON_DISK = (Role.OPTIMIZER_STATE, Role.WEIGHT, Role.PENDING_GRADIENT, Role.ACCUMULATED)
"""Roles of the caller's blocks that can have their home on the disk, in the order in which they are moved there."""


@dataclass(frozen=True)
class HostLimit:
    """What a step may hold outside the device.

    Attributes:
        memory_bytes: homes and buffers in host memory.
        disk_bytes: blocks on the disk; None: not known before their file is made.
        on_disk: roles of the caller's blocks whose home may be the disk, those that move there first first.
        ranks: number of a host's ranks that share it.
    """

    memory_bytes: int
    disk_bytes: int | None = None
    on_disk: tuple[Role, ...] = ON_DISK
    ranks: int = 1
