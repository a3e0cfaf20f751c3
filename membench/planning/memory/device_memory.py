"""Memory of a step as a card shows it: allocated, reserved and used, and whether the card has it.

    used = reserved + context                       what nvidia-smi shows of the process
    fits: the allocator finds room in memory - context, after it has returned what is free

The three are never mixed: *allocated* is exact, the peak of the schedule; *reserved* is simulated by the caching allocator
with assumptions on the libraries' workspaces; *used* adds a context that was measured by others or is assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from membench.core.device import DeviceProfile
from membench.core.errors import MembenchError, OutOfMemory
from membench.core.schedule import RepeatedSchedule
from membench.core.units import MIB
from membench.planning.memory.caching_allocator import CachingAllocator
from membench.planning.memory.expandable_allocator import ExpandableAllocator
from membench.planning.memory.reserved_memory import reserved_memory
from membench.planning.memory.segment_allocator import SegmentAllocator


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings of PyTorch's caching allocator.

    Attributes:
        expandable_segments: see `ExpandableAllocator`.
        max_split_bytes: see `SegmentAllocator`; without effect with expandable segments.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> "AllocatorSettings":
        """Return the settings of a text as in ``PYTORCH_CUDA_ALLOC_CONF``.

        Args:
            text: ``"expandable_segments:True"``, ``"max_split_size_mb:128"`` (MiB), both with a comma, or empty.

        Raises:
            MembenchError: another setting, or another value.
        """
        settings = cls()
        for part in filter(None, text.replace(" ", "").split(",")):
            name, _, value = part.partition(":")
            if name == "expandable_segments" and value in ("True", "False"):
                settings = cls(value == "True", settings.max_split_bytes)
            elif name == "max_split_size_mb" and value.isdecimal() and int(value) > 20:
                settings = cls(settings.expandable_segments, int(value) * MIB)
            else:
                raise MembenchError(
                    f"the allocator's setting {part!r} is not simulated; choose of expandable_segments:True and "
                    "max_split_size_mb:N with N above 20"
                )
        return settings

    def allocator(self, capacity_bytes: int | None = None) -> CachingAllocator:
        """Return a new allocator with these settings."""
        if self.expandable_segments:
            return ExpandableAllocator(capacity_bytes)
        return SegmentAllocator(capacity_bytes, max_split_bytes=self.max_split_bytes)


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a step, repeated as in a training, on a device.

    Attributes:
        allocated_bytes: the most that the step's schedules hold.
        reserved_bytes: the most that PyTorch reserves for it; where the device has too little, on one with enough.
        fragmentation_bytes: reserved but not in use when the most is reserved for the first time.
        used_bytes: reserved, with the device's context; None where that is not known.
        free_bytes: of the device, next to the context.
        fits: whether PyTorch finds room for it there.
    """

    allocated_bytes: int
    reserved_bytes: int
    fragmentation_bytes: int
    used_bytes: int | None
    free_bytes: int
    fits: bool

    @property
    def excess_bytes(self) -> int:
        """By how much it has to be less to fit, estimated where the allocator reserves no more than there is; 0: it fits."""
        return 0 if self.fits else max(self.reserved_bytes - self.free_bytes, self.free_bytes // 100, 1)


def device_memory(
    plan: Sequence[RepeatedSchedule],
    device: DeviceProfile,
    settings: AllocatorSettings = AllocatorSettings(),
) -> DeviceMemory:
    """Return the memory of a planned step on a device under PyTorch."""
    context_bytes = device.context_bytes or 0
    free_bytes = max(0, device.memory_bytes - context_bytes)
    try:
        fitting = settings.allocator(free_bytes)
        reserved, fits = reserved_memory(plan, fitting, device), True
    except OutOfMemory:
        reserved, fits = reserved_memory(plan, settings.allocator(), device), False
    return DeviceMemory(
        allocated_bytes=max(run.schedule.peak_bytes for run in plan),
        reserved_bytes=reserved.reserved_bytes,
        fragmentation_bytes=reserved.fragmentation_bytes,
        used_bytes=None if device.context_bytes is None else reserved.reserved_bytes + context_bytes,
        free_bytes=free_bytes,
        fits=fits,
    )
