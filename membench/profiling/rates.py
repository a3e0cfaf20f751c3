"""Measured rates of a GPU, as a device profile for simulation."""

from typing import Any

import torch

from membench.core.device import DeviceProfile, file_name
from membench.core.units import GIB
from membench.profiling.link import Link, measure_link
from membench.profiling.operators import time_s

_MATRIX_SIZE = 8192
_COPIED_BYTES = GIB
_REPETITIONS = 10
_ISSUING_S = 1e-3
"""Longer than the host takes to issue a run."""


def measure_device(device: torch.device) -> tuple[DeviceProfile, Link]:
    """Measure a GPU: single-precision matrix products, copies within its memory, and copies over the link."""
    left, right = (torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, device=device) for _ in range(2))
    product_s = _best_s(lambda: torch.mm(left, right))
    source, target = (torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    copy_s = _best_s(lambda: target.copy_(source))
    link = measure_link(device)
    properties = torch.cuda.get_device_properties(device)
    return DeviceProfile(
        name=file_name(properties.name),
        memory_bytes=properties.total_memory,
        arithmetic_ops_per_s=2 * _MATRIX_SIZE**3 / product_s,
        memory_bytes_per_s=2 * _COPIED_BYTES / copy_s,
        host_to_device_bytes_per_s=link.host_to_device_bytes_per_s,
        device_to_host_bytes_per_s=link.device_to_host_bytes_per_s,
        copy_latency_s=link.latency_s,
        full_duplex=link.full_duplex,
        multiprocessors=properties.multi_processor_count,
    ), link


def _best_s(run: Any) -> float:
    run()
    return min(time_s(run, 1, busy_s=_ISSUING_S) for _ in range(_REPETITIONS))


def device_yaml(profile: DeviceProfile, link: Link, facts: dict[str, Any]) -> str:
    """Return the text of a device's configuration file, with numbers of four digits."""
    return "\n".join(
        [
            f"# {facts['device']}, measured: driver {facts['driver']}, CUDA {facts['cuda']}",
            "# Written by: membench calibrate device=cuda",
            "_target_: membench.core.device.DeviceProfile",
            f"name: {profile.name}",
            f"memory_bytes: {profile.memory_bytes}  # of the device's properties in CUDA",
            f"arithmetic_ops_per_s: {_number(profile.arithmetic_ops_per_s)}"
            f"  # {_MATRIX_SIZE} x {_MATRIX_SIZE} float32 matrix product, best of {_REPETITIONS}",
            f"memory_bytes_per_s: {_number(profile.memory_bytes_per_s)}  # read and written by a copy of 1 GiB",
            f"host_to_device_bytes_per_s: {_number(profile.host_to_device_bytes_per_s)}"
            f"  # pinned, alone; {_number(link.host_to_device_together_bytes_per_s)} with the other way",
            f"device_to_host_bytes_per_s: {_number(profile.device_to_host_bytes_per_s)}"
            f"  # pinned, alone; {_number(link.device_to_host_together_bytes_per_s)} with the other way",
            f"copy_latency_s: {_number(profile.copy_latency_s)}  # a copy of 4 KiB",
            f"full_duplex: {str(profile.full_duplex).lower()}  # by the rates of both ways together",
            f"multiprocessors: {profile.multiprocessors}  # of the device's properties in CUDA",
            "",
        ]
    )


def _number(value: float) -> str:
    return f"{value:.3e}"
