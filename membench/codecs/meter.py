"""A codec that measures the density of activations."""

import math

import torch
from torch import Tensor

from membench.core.graph.codec import ActivationCodec


class DensityMeter(ActivationCodec):
    """Copies one activation unchanged, and records the fraction of its elements that are not zero.

    Attributes:
        likely_density: the largest fraction seen plus six standard deviations, which another draw of dropout hardly
            exceeds if elements are dropped independently.
    """

    host_waits = True

    def __init__(self) -> None:
        self.likely_density = 0.0

    @property
    def rounding(self) -> float:
        return 0.0

    def size_bytes(self, elements: int, nonzeros: int) -> int:
        return torch.float32.itemsize * elements

    def encode_into(self, source: Tensor, target: Tensor) -> None:
        elements = max(1, source.numel())
        density = int(torch.count_nonzero(source.view(torch.int32))) / elements
        spare = 6 * math.sqrt(density * (1 - density) / elements)
        self.likely_density = max(self.likely_density, min(1.0, density + spare))
        target.copy_(source.view(torch.uint8))

    def decode_into(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source.view(torch.float32))
