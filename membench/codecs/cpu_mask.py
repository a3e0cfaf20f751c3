"""The one-bit mask on the CPU."""

from typing import Any

import numpy as np
from torch import Tensor

from membench.core.libraries.loops import compiled


def encode(source: Tensor, target: Tensor) -> None:
    """Set the bit of each element that is not at most zero."""
    _encode(source.numpy(), target.numpy())


def decode(source: Tensor, target: Tensor) -> None:
    """Write a one for each bit that is set, and a zero for the others."""
    _decode(source.numpy(), target.numpy())


@compiled
def _encode(elements: Any, packed: Any) -> None:
    for byte in range(len(elements) // 8):
        bits = 0
        for place in range(8):
            bits |= (not elements[8 * byte + place] <= 0) << place
        packed[byte] = bits
    rest = len(elements) % 8
    if rest:
        bits = 0
        for place in range(rest):
            bits |= (not elements[len(elements) - rest + place] <= 0) << place
        packed[-1] = bits


@compiled
def _decode(packed: Any, elements: Any) -> None:
    for byte in range(len(elements) // 8):
        for place in range(8):
            elements[8 * byte + place] = np.float32((packed[byte] >> place) & 1)
    for at in range(len(elements) - len(elements) % 8, len(elements)):
        elements[at] = np.float32((packed[-1] >> at % 8) & 1)
