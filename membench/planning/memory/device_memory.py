"""Memory of a step as a card shows it: allocated, reserved and used, and whether the card has it.

    used = reserved + context + also                what nvidia-smi shows of the process
    fits: the allocator finds room in memory - context - also, after it has returned what is free

The three are never mixed: *allocated* is exact, the peak of the schedule; *reserved* is simulated by the caching
allocator with assumptions on the libraries' workspaces; *used* adds a context that was measured by others or is
assumed, and what the process holds besides the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from membench.core.errors import OutOfMemory
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.hardware.allocator import AllocatorSettings
from membench.core.hardware.device import DeviceProfile
from membench.planning.memory.caching_allocator import CachingAllocator
from membench.planning.memory.expandable_allocator import ExpandableAllocator
from membench.planning.memory.reserved_memory import reserved_memory
from membench.planning.memory.segment_allocator import SegmentAllocator


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a step, repeated as in a training, on a device.

    Attributes:
        allocated_bytes: the most that the step's schedules hold.
        reserved_bytes: the most that PyTorch reserves for it; where the device has too little, on one with enough.
        fragmentation_bytes: reserved but not in use when the most is reserved for the first time.
        used_bytes: reserved, with the device's context and what the process holds besides; None where the context is
            not known.
        free_bytes: memory of the device that is free for the step.
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
        """How much less would fit, estimated where the allocator reserves no more than there is; 0 if it fits."""
        return 0 if self.fits else max(self.reserved_bytes - self.free_bytes, self.free_bytes // 100, 1)


def new_allocator(settings: AllocatorSettings, capacity_bytes: int | None = None) -> CachingAllocator:
    """Return an allocator with these settings that holds nothing."""
    if settings.expandable_segments:
        return ExpandableAllocator(capacity_bytes)
    return SegmentAllocator(capacity_bytes, max_split_bytes=settings.max_split_bytes)


def device_memory(plan: Sequence[RepeatedSchedule], device: DeviceProfile) -> DeviceMemory:
    """Return the memory of a planned step on a device under PyTorch."""
    context_bytes = device.context_bytes
    try:
        fitting = new_allocator(device.allocator, device.free_bytes)
        reserved, fits = reserved_memory(plan, fitting, device), True
    except OutOfMemory:
        reserved, fits = reserved_memory(plan, new_allocator(device.allocator), device), False
    return DeviceMemory(
        allocated_bytes=max(run.schedule.peak_bytes for run in plan),
        reserved_bytes=reserved.reserved_bytes,
        fragmentation_bytes=reserved.fragmentation_bytes,
        used_bytes=None if context_bytes is None else reserved.reserved_bytes + context_bytes + device.also_bytes,
        free_bytes=device.free_bytes,
        fits=fits,
    )
