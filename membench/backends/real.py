"""Real devices, and the backends that run schedules on them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch

from membench.backends.accelerator import AcceleratorBackend
from membench.backends.cpu import CpuBackend
from membench.backends.tensor_backend import TensorBackend
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.graph.schedule import Schedule

_ROUNDS_TO_TF32 = {Precision.FP32: False, Precision.TF32: True}
"""Precisions that set torch's switches of TF32, for convolutions and for other products."""


def real_device(backend: str) -> torch.device:
    """Return the device of a backend.

    Raises:
        MembenchError: the backend needs a GPU, and torch sees none of that type.
    """
    if backend == "cpu":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != backend:
        raise MembenchError(
            f"backend {backend!r} needs a GPU, and torch sees none; choose backend='cpu' or backend='simulated'"
        )
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def real_backends() -> tuple[str, ...]:
    """Return the names of backends that run steps: the CPU, and devices by torch's types; ROCm's is ``"cuda"``, too."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return tuple(dict.fromkeys(("cpu", "cuda", *([accelerator.type] if accelerator else []))))


def check_products(precision: Precision | None, device: torch.device) -> None:
    """Refuse a precision in which a device's products would not run.

    Raises:
        MembenchError: the CPU has no TF32, or torch's switches of TF32 are set otherwise.
    """
    if precision is Precision.TF32 and device.type == "cpu":
        raise MembenchError("the CPU has no tf32; choose fp32, bf16 or amp_bf16")
    if precision not in _ROUNDS_TO_TF32 or device.type == "cpu":
        return
    wanted = _ROUNDS_TO_TF32[precision]
    if _tf32_switches() != (wanted, wanted):
        raise MembenchError(
            f"precision={precision} runs products as torch's switches say, which are set otherwise; set "
            f"torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32 to {wanted}"
        )


@contextmanager
def products_in(precision: Precision | None) -> Iterator[None]:
    """Set torch's switches of TF32 as a precision demands."""
    before = _tf32_switches()
    if precision in _ROUNDS_TO_TF32:
        _set_tf32_switches(*[_ROUNDS_TO_TF32[precision]] * 2)
    try:
        yield
    finally:
        _set_tf32_switches(*before)


def _tf32_switches() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


def _set_tf32_switches(of_cudnn: bool, of_cublas: bool) -> None:
    torch.backends.cudnn.allow_tf32 = of_cudnn
    torch.backends.cuda.matmul.allow_tf32 = of_cublas


def real_backend(
    schedule: Schedule, device: torch.device, groups: Mapping[str, Any] = MappingProxyType({})
) -> TensorBackend:
    """Return the backend that runs a schedule on a device.

    Args:
        groups: process groups by axis, of the collectives.
    """
    if device.type != "cpu":
        return AcceleratorBackend(schedule, device, groups)
    return CpuBackend(schedule.graph, groups=groups)
