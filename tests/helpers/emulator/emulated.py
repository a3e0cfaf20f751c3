"""`torch.emulated`: what torch asks the Python module of a device for, besides what `torch.accelerator` has."""

import torch
from torch import Tensor


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def manual_seed_all(seed: int) -> None:
    torch.ops.emulator.seed(seed)


def get_rng_state(device: object = None) -> Tensor:
    """Return the state that the next kernel draws with; kernels on streams have been given theirs."""
    return torch.ops.emulator.random_state()


def set_rng_state(state: Tensor, device: object = None) -> None:
    torch.ops.emulator.set_random_state(state)
