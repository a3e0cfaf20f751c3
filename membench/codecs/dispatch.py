"""Which code encodes and decodes on a device."""

from importlib import import_module
from types import ModuleType

import torch


def kernels(device: torch.device, codec: str) -> ModuleType:
    """Return a codec's compiled loops for the CPU, or its kernels for a GPU.

    Imported here, when they are needed: a machine for one may lack the compiler for the other.
    """
    return import_module(f"membench.codecs.{'cpu' if device.type == 'cpu' else 'cuda'}_{codec}")
