"""Device memory as the allocator and the driver see it, and a cap on it.

A probe process calls `cap_memory` first, so that a large card is a small one: beyond the cap allocation fails as on a
card that ends there. `ALLOCATOR_ENVIRONMENT` has to be set before CUDA starts.
"""

import resource
from dataclasses import dataclass

import torch

from membench.core.errors import MembenchError
from membench.core.units import MIB

ALLOCATOR_ENVIRONMENT = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Segments that grow: what is reserved follows what is allocated, and no remainder of a piece is lost."""

UNFILLED_BYTES = 22 * MIB
"""What the allocator may reserve and not hand out: the rest of a page of 20 MiB, and of one of 2 MiB for small pieces."""


@dataclass(frozen=True)
class MemoryReadings:
    """Peaks since `reset_readings`, in bytes.

    Attributes:
        allocated_bytes: pieces of memory handed out, rounded up to 512 bytes each.
        active_bytes: those and the ones that wait for a stream.
        reserved_bytes: what the allocator took from the driver.
        allocation_retries: how often it had to give cached memory back and ask again.
        resident_host_bytes: the process's peak in host memory, over its whole life.
    """

    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    allocation_retries: int
    resident_host_bytes: int


def reset_readings(device: torch.device) -> None:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.reset_accumulated_memory_stats(device)


def read_memory(device: torch.device) -> MemoryReadings:
    torch.cuda.synchronize(device)
    statistics = torch.cuda.memory_stats(device)
    return MemoryReadings(
        allocated_bytes=statistics["allocated_bytes.all.peak"],
        active_bytes=statistics["active_bytes.all.peak"],
        reserved_bytes=statistics["reserved_bytes.all.peak"],
        allocation_retries=statistics["num_alloc_retries"],
        resident_host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # Linux counts in KiB
    )


def drop_library_workspaces(device: torch.device) -> None:
    """Wait for the device, and give back what cuBLAS keeps on it; it takes that again when it next runs."""
    torch.cuda.synchronize(device)
    torch._C._cuda_clearCublasWorkspaces()


def cap_memory(size_bytes: int, device: torch.device) -> None:
    """Let this process's allocator hand out no more than that of the device; it may reserve `UNFILLED_BYTES` beyond it.

    Raises:
        MembenchError: the device has less.
    """
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    if size_bytes > total_bytes:
        raise MembenchError(f"a budget of {size_bytes:,} bytes is more than the {total_bytes:,} of {device}")
    torch.cuda.empty_cache()  # what was taken before counts, in use or not
    fraction = min(1.0, (size_bytes + UNFILLED_BYTES) / total_bytes)
    torch.cuda.set_per_process_memory_fraction(fraction, device)


def capacity_bytes(device: torch.device) -> int:
    """Return what this process may reserve of the device: all of it, or the cap."""
    fraction = torch.cuda.get_per_process_memory_fraction(device)
    return round(fraction * torch.cuda.get_device_properties(device).total_memory)
