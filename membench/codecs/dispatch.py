"""Choice of the CPU or the GPU implementation of a codec."""

from importlib import import_module
from types import ModuleType

import torch


def kernels(device: torch.device, codec: str) -> ModuleType:
    """Return a codec's compiled loops for the CPU, or its kernels for a GPU.

    They are imported when they are needed, because a machine may lack the compiler for the other device.
    """
    return import_module(f"membench.codecs.{'cpu' if device.type == 'cpu' else 'cuda'}_{codec}")
