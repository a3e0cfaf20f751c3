"""Real devices, and the backends that run schedules on them."""

import torch

from membench.backends.cpu import CpuBackend
from membench.backends.cuda import CudaBackend
from membench.backends.tensor_backend import TensorBackend
from membench.core.errors import MembenchError
from membench.core.schedule import Schedule


def real_device(backend: str) -> torch.device:
    """Return the device of a backend.

    Raises:
        MembenchError: the backend needs a GPU, and torch sees none.
    """
    if backend == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MembenchError(
            "backend 'cuda' needs a GPU, and torch sees none; choose backend='cpu' or backend='simulated'"
        )
    return torch.device("cuda", torch.cuda.current_device())


def real_backend(schedule: Schedule, device: torch.device) -> TensorBackend:
    """Return the backend that runs a schedule on a device."""
    return CudaBackend(schedule, device) if device.type == "cuda" else CpuBackend(schedule.graph)
