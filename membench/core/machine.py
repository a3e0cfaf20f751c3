"""Machine: the processor, the memory and the disk behind a device; and what a step may hold there."""

from dataclasses import dataclass

from membench.core.checks import COUNT, POSITIVE, check
from membench.core.task_graph import Role


@dataclass(frozen=True)
class Machine:
    """Capacities and rates of the machine that a device is in, for one device.

    Attributes:
        memory_bytes: host memory that a program can have.
        memory_bytes_per_s: host memory that an optimizer's update on all cores reads and writes per second.
        disk_bytes: of the file in which blocks are kept; None: there is no disk for them.
        disk_read_bytes_per_s, disk_write_bytes_per_s: reached by large sequential requests; None as `disk_bytes`.

    Raises:
        MembenchError: a capacity or a rate is not positive.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    disk_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        check(COUNT, memory_bytes=self.memory_bytes)
        check(POSITIVE, memory_bytes_per_s=self.memory_bytes_per_s)
        names = ("disk_bytes", "disk_read_bytes_per_s", "disk_write_bytes_per_s")
        check(POSITIVE, **{name: value for name in names if (value := getattr(self, name)) is not None})


ON_DISK = (Role.OPTIMIZER_STATE, Role.WEIGHT, Role.ACCUMULATED)
"""Roles of the caller's blocks that can have their home on the disk, in the order in which they are moved there."""


@dataclass(frozen=True)
class HostLimit:
    """What a step may hold outside the device.

    Attributes:
        memory_bytes: homes and buffers in host memory.
        disk_bytes: blocks on the disk; None: not known before their file is made.
        on_disk: roles of the caller's blocks whose home may be the disk, those that move there first first.
    """

    memory_bytes: int
    disk_bytes: int | None = None
    on_disk: tuple[Role, ...] = ON_DISK
