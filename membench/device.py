"""DeviceProfile: what a simulator has to know of a device."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Power:
    """What a board takes, in watts.

    Attributes:
        awake_w: with a program's context, and no work.
        compute_w: while a kernel runs, the former included.
        copy_w: what a copy over the link adds, in either direction.
    """

    awake_w: float
    compute_w: float
    copy_w: float


@dataclass(frozen=True)
class DeviceProfile:
    """Capacities and rates of one device, from its datasheet or a published measurement.

    Attributes:
        memory_bytes: device memory that a program can use.
        arithmetic_ops_per_s: peak of single-precision floating-point operations.
        memory_bytes_per_s: peak bandwidth of device memory.
        host_to_device_bytes_per_s: reached by a pinned copy.
        device_to_host_bytes_per_s: reached by a pinned copy.
        copy_latency_s: from the issue of a copy to its first byte.
        full_duplex: copies in both directions overlap.
        power: None where nobody states it.
    """

    name: str
    memory_bytes: int
    arithmetic_ops_per_s: float
    memory_bytes_per_s: float
    host_to_device_bytes_per_s: float
    device_to_host_bytes_per_s: float
    copy_latency_s: float
    full_duplex: bool
    power: Power | None = None


def file_name(device: str) -> str:
    """Return a device's name as files and folders bear it: ``"NVIDIA H200"`` becomes ``"nvidia_h200"``."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")
