"""One bit an element: what the backward pass of a ReLU needs of its output (Gist's Binarize, Jain et al. 2018, 3.1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from membench.codec import MapCodec
from membench.codecs.arrays import Array, arrays_bytes, carve, scalar

_BITS = 8


@dataclass(frozen=True)
class BitMask(MapCodec):
    """Keeps where elements are not at most zero, NaN included, and decodes to ones there and zeros elsewhere.

    Not for a map of which anything but its signs is read.
    """

    @property
    def rounding(self) -> float:
        return 0.0

    def size_bytes(self, elements: int, nonzeros: int) -> int:
        return -(-elements // _BITS)

    def staging_bytes(self, elements: int) -> int:
        return arrays_bytes(*self._staging(elements))

    def _staging(self, elements: int) -> list[Array]:
        count = self.size_bytes(elements, 0)
        return [(torch.uint8, _BITS * count), (torch.uint8, count)]

    def encode_into(self, source: Tensor, target: Tensor, staging: Tensor) -> None:
        bits, _ = carve(staging, *self._staging(source.numel()))
        bits[source.numel() :].zero_()
        zero = scalar(0, torch.float32)
        torch.le(source, zero, out=bits[: source.numel()].view(torch.bool)).logical_not_()
        columns = bits.view(-1, _BITS)
        target.copy_(columns[:, 0])
        for position in range(1, _BITS):
            target.add_(columns[:, position], alpha=1 << position)

    def decode_into(self, source: Tensor, target: Tensor, staging: Tensor) -> None:
        bits, shifted = carve(staging, *self._staging(target.numel()))
        columns = bits.view(-1, _BITS)
        for position in range(_BITS):
            torch.bitwise_right_shift(source, scalar(position, torch.uint8), out=shifted)
            columns[:, position].copy_(shifted.bitwise_and_(scalar(1, torch.uint8)))
        target.copy_(bits[: target.numel()])
