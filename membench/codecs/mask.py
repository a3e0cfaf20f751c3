"""One bit an element: what the backward pass of a ReLU needs of its output (Gist's Binarize, Jain et al. 2018, 3.1)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from membench.codec import MapCodec
from membench.codecs.arrays import Array, arrays_bytes, carve, scalar

_BITS = 8
_PIECE_ELEMENTS = 2**20  # worked on at a time


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
        count = self.size_bytes(min(elements, _PIECE_ELEMENTS), 0)
        return [(torch.uint8, _BITS * count), (torch.uint8, count)]

    def encode_into(self, source: Tensor, target: Tensor, staging: Tensor) -> None:
        bits, _ = carve(staging, *self._staging(source.numel()))
        zero = scalar(0, torch.float32)
        for elements, packed in _pieces(source, target):
            bits[elements.numel() : _BITS * packed.numel()].zero_()
            torch.le(elements, zero, out=bits[: elements.numel()].view(torch.bool)).logical_not_()
            columns = bits[: _BITS * packed.numel()].view(-1, _BITS)
            packed.copy_(columns[:, 0])
            for position in range(1, _BITS):
                packed.add_(columns[:, position], alpha=1 << position)

    def decode_into(self, source: Tensor, target: Tensor, staging: Tensor) -> None:
        bits, shifted = carve(staging, *self._staging(target.numel()))
        for elements, packed in _pieces(target, source):
            columns = bits[: _BITS * packed.numel()].view(-1, _BITS)
            for position in range(_BITS):
                bit = shifted[: packed.numel()]
                torch.bitwise_right_shift(packed, scalar(position, torch.uint8), out=bit)
                columns[:, position].copy_(bit.bitwise_and_(scalar(1, torch.uint8)))
            elements.copy_(bits[: elements.numel()])


def _pieces(elements: Tensor, packed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield parts of a map with their parts of the mask."""
    return zip(elements.split(_PIECE_ELEMENTS), packed.split(_PIECE_ELEMENTS // _BITS), strict=True)
