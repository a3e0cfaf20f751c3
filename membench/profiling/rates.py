"""Measured rates of a GPU, as a device profile for simulation."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from membench.core.graph.precision import Precision
from membench.core.hardware.device import TENSOR_CORE_PRECISIONS, DeviceProfile, file_name
from membench.core.units import GIB
from membench.profiling.link import Link, measure_link
from membench.profiling.nvml import read_pci_link, read_processes
from membench.profiling.operators import time_s

_MATRIX_SIZE = 8192
_COPIED_BYTES = GIB
_REPETITIONS = 10
_ISSUING_S = 1e-3
"""Longer than the host takes to issue a run."""
_PROPERTY = "of the device's properties in CUDA"
_FORMATS = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
"""Of matrices in memory, where they are not single precision."""


def measure_device(device: torch.device) -> tuple[DeviceProfile, Link]:
    """Measure a GPU: products of matrices, copies within its memory and over the link, and the process's context."""
    product_rates: dict[str, float] = {
        precision: _product_ops_per_s(precision, device) for precision in _precisions(device)
    }
    source, target = (torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    copy_s = _best_s(lambda: target.copy_(source))
    link = measure_link(device)
    properties = torch.cuda.get_device_properties(device)
    lanes = read_pci_link(device)
    process_bytes = read_processes(device).process_bytes.value
    return DeviceProfile(
        name=file_name(properties.name),
        memory_bytes=properties.total_memory,
        arithmetic_ops_per_s=product_rates.pop(Precision.FP32),
        memory_bytes_per_s=2 * _COPIED_BYTES / copy_s,
        host_to_device_bytes_per_s=link.host_to_device_bytes_per_s,
        device_to_host_bytes_per_s=link.device_to_host_bytes_per_s,
        copy_latency_s=link.latency_s,
        full_duplex=link.full_duplex,
        multiprocessors=properties.multi_processor_count,
        compute_capability=_compute_capability(device),
        l2_bytes=properties.L2_cache_size,
        context_bytes=int(process_bytes) - torch.cuda.memory_reserved(device) if process_bytes else None,
        link_generation=lanes.generation,
        link_lanes=lanes.lanes,
        pageable_host_to_device_bytes_per_s=link.pageable_host_to_device_bytes_per_s,
        pageable_device_to_host_bytes_per_s=link.pageable_device_to_host_bytes_per_s,
        precision_ops_per_s=product_rates,
    ), link


def _compute_capability(device: torch.device) -> float | None:
    """Return NVIDIA's number; ROCm gives other GPUs one of the same form, of AMD's architectures."""
    if torch.version.hip is not None:
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return float(f"{major}.{minor}")


def _precisions(device: torch.device) -> list[Precision]:
    """Return the GPU's formats of products; tensor cores came with Volta, tf32 and bf16 with Ampere."""
    generation, _ = torch.cuda.get_device_capability(device)
    known = TENSOR_CORE_PRECISIONS if generation >= 8 else (Precision.FP16,) if generation == 7 else ()
    return [Precision.FP32, *known]


def _product_ops_per_s(precision: Precision, device: torch.device) -> float:
    dtype = _FORMATS.get(precision, torch.float32)
    left, right = (torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, device=device, dtype=dtype) for _ in range(2))
    with _tf32(precision is Precision.TF32):
        return 2 * _MATRIX_SIZE**3 / _best_s(lambda: torch.mm(left, right))


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _best_s(run: Any) -> float:
    run()
    return min(time_s(run, 1, busy_s=_ISSUING_S) for _ in range(_REPETITIONS))


def device_yaml(profile: DeviceProfile, link: Link, facts: dict[str, Any]) -> str:
    """Return the text of a device's configuration file, with numbers of four digits."""
    product = f"{_MATRIX_SIZE} x {_MATRIX_SIZE} matrix product, best of {_REPETITIONS}"
    lines = ((name, getattr(profile, name), source) for name, source in _sources(link, product).items())
    rates = [f"  {name}: {_number(rate)}  # {name} {product}" for name, rate in profile.precision_ops_per_s.items()]
    return "\n".join(
        [
            f"# {facts['device']}, measured: driver {facts['driver']}, CUDA {facts['cuda']}",
            "# Written by: membench calibrate device=cuda",
            "_target_: membench.core.hardware.device.DeviceProfile",
            *(_line(name, value, source) for name, value, source in lines if value is not None),
            *(["precision_ops_per_s:", *rates] if rates else []),
            "",
        ]
    )


def _sources(link: Link, product: str) -> dict[str, str]:
    """Return where each number of a profile is from, in the file's order."""
    to_device, to_host = link.host_to_device_together_bytes_per_s, link.device_to_host_together_bytes_per_s
    return {
        "name": "",
        "memory_bytes": _PROPERTY,
        "arithmetic_ops_per_s": f"float32 {product}",
        "memory_bytes_per_s": "read and written by a copy of 1 GiB",
        "host_to_device_bytes_per_s": f"pinned, alone; {_number(to_device)} with the other way",
        "device_to_host_bytes_per_s": f"pinned, alone; {_number(to_host)} with the other way",
        "copy_latency_s": "a copy of 4 KiB",
        "full_duplex": "by the rates of both ways together",
        "multiprocessors": _PROPERTY,
        "compute_capability": _PROPERTY,
        "l2_bytes": _PROPERTY,
        "context_bytes": "this process on the GPU, without what torch's allocator reserves",
        "link_generation": "of PCI Express, the driver's maximum",
        "link_lanes": "the driver's maximum",
        "pageable_host_to_device_bytes_per_s": "not pinned, alone",
        "pageable_device_to_host_bytes_per_s": "not pinned, alone",
    }


def _line(name: str, value: float | bool | str, source: str) -> str:
    written = (
        _number(value)
        if isinstance(value, float) and name != "compute_capability"  # a version, such as 9.0
        else str(value).lower()
        if isinstance(value, bool)
        else value
    )
    return f"{name}: {written}  # {source}" if source else f"{name}: {written}"


def _number(value: float) -> str:
    return f"{value:.3e}"
