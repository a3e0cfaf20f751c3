"""Device memory as the allocator and the driver count it, and a cap on it.

A probe process calls `cap_memory` first, so that a large card acts as a small one: beyond the cap, allocation fails as
it does on a card of that size. `ALLOCATOR_ENVIRONMENT` must be set before CUDA starts.
"""

import resource
from dataclasses import dataclass

import torch

from membench.core.errors import MembenchError
from membench.core.libraries.torch_devices import clear_cublas_workspaces
from membench.core.units import MIB

ALLOCATOR_ENVIRONMENT = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Expandable segments: reserved memory follows allocated memory without fragmentation."""

UNFILLED_BYTES = 22 * MIB
"""Most that the allocator reserves unused: the rests of a page of 20 MiB, and of one of 2 MiB for small pieces."""


@dataclass(frozen=True)
class MemoryReadings:
    """Peaks since `reset_readings`, in bytes.

    Attributes:
        allocated_bytes: allocated pieces, each rounded up to 512 bytes.
        active_bytes: allocated pieces and freed ones that wait for a stream.
        reserved_bytes: memory that the allocator took from the driver.
        allocation_retries: number of times that it freed its cache and tried again.
        resident_host_bytes: the process's peak in host memory since it started.
    """

    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    allocation_retries: int
    resident_host_bytes: int


def reset_readings(device: torch.device) -> None:
    """Wait for the device and reset its peaks."""
    torch.accelerator.synchronize(device)
    torch.accelerator.reset_peak_memory_stats(device)
    torch.accelerator.reset_accumulated_memory_stats(device)


def read_memory(device: torch.device) -> MemoryReadings:
    """Wait for the device and return its peaks."""
    torch.accelerator.synchronize(device)
    statistics = torch.accelerator.memory_stats(device)
    return MemoryReadings(
        allocated_bytes=statistics["allocated_bytes.all.peak"],
        active_bytes=statistics["active_bytes.all.peak"],
        reserved_bytes=statistics["reserved_bytes.all.peak"],
        allocation_retries=statistics["num_alloc_retries"],
        resident_host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # Linux counts in KiB
    )


def drop_library_workspaces(device: torch.device) -> None:
    """Wait for the device and free cuBLAS's workspaces, which cuBLAS allocates again when it next runs."""
    torch.accelerator.synchronize(device)
    if device.type == "cuda":
        clear_cublas_workspaces()


def cap_memory(size_bytes: int, device: torch.device) -> None:
    """Limit the memory of a GPU of CUDA's or ROCm's that this process allocates; it may reserve `UNFILLED_BYTES` more.

    Raises:
        MembenchError: the device has less.
    """
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    if size_bytes > total_bytes:
        raise MembenchError(f"a budget of {size_bytes:,} bytes is more than the {total_bytes:,} of {device}")
    torch.cuda.empty_cache()  # cached memory would count
    fraction = min(1.0, (size_bytes + UNFILLED_BYTES) / total_bytes)
    torch.cuda.set_per_process_memory_fraction(fraction, device)


def capacity_bytes(device: torch.device) -> int:
    """Return the device memory that this process may reserve: all of it, or the cap."""
    if device.type != "cuda":
        return torch.accelerator.get_memory_info(device)[1]
    fraction = torch.cuda.get_per_process_memory_fraction(device)
    return round(fraction * torch.cuda.get_device_properties(device).total_memory)
