"""COO, ELL and DIA: what EPMC compares the sizes of VPEncoding and CSR with (Section 5.5, Figure 13).

All lay a map's elements out as a matrix of 256 columns, its last row filled up with zeros, and use 32-bit numbers.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from membench.codec import Codec, Encoded, flatten
from membench.codecs.dispatch import kernels

_NUMBER_BYTES = 4


@dataclass(frozen=True)
class _Matrix(Codec):
    columns: int = 256
    name: ClassVar[str]

    def encode(self, tensor: Tensor) -> Encoded:
        flat = flatten(tensor).view(torch.int32)
        missing = self._rows(flat.numel()) * self.columns - flat.numel()
        matrix = (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, self.columns)
        return Encoded(self._kernel("encode", tensor.device)(matrix), tensor.shape)

    def decode(self, encoded: Encoded) -> Tensor:
        """Return the tensor that was encoded; its last row's fill is cut off."""
        elements, device = encoded.shape.numel(), encoded.data.device
        matrix = torch.empty(self._rows(elements), self.columns, dtype=torch.int32, device=device)
        self._kernel("decode", device)(encoded.data, matrix)
        return matrix.view(-1)[:elements].view(torch.float32).view(encoded.shape)

    def _rows(self, elements: int) -> int:
        return -(-elements // self.columns)

    def _kernel(self, verb: str, device: torch.device) -> Any:
        return getattr(kernels(device, "classic"), f"{verb}_{self.name}")


@dataclass(frozen=True)
class COO(_Matrix):
    """Row, column and value of each element that is not zero: 12 bytes."""

    name = "coo"

    def size_bytes(self, nonzeros: int) -> int:
        return 3 * _NUMBER_BYTES * nonzeros

    def expected_size_bytes(self, elements: int, density: float) -> float:
        return self.size_bytes(round(density * elements))


@dataclass(frozen=True)
class ELL(_Matrix):
    """Columns and values of each row, as many in all rows as in the fullest; the rest is marked by column -1."""

    name = "ell"

    def size_bytes(self, elements: int, width: int) -> int:
        """Return the size of a map whose fullest row has `width` elements that are not zero."""
        return 2 * _NUMBER_BYTES * self._rows(elements) * width

    def expected_size_bytes(self, elements: int, density: float) -> float:
        """Sum P(the fullest row has more than k), each row being binomial."""
        rows = self._rows(elements)
        below = expected = 0.0
        for k in range(self.columns):
            below = min(1.0, below + _binomial(self.columns, k, density))
            expected += 1 - below**rows
        return 2 * _NUMBER_BYTES * rows * expected


@dataclass(frozen=True)
class DIA(_Matrix):
    """Each diagonal that is not all zero, as long as a row, after its number."""

    name = "dia"

    def size_bytes(self, diagonals: int) -> int:
        return _NUMBER_BYTES * diagonals * (1 + self.columns)

    def expected_size_bytes(self, elements: int, density: float) -> float:
        rows = self._rows(elements)
        expected = sum(
            1 - (1 - density) ** min(offset + rows, rows, self.columns, self.columns - offset)
            for offset in range(1 - rows, self.columns)
        )
        return _NUMBER_BYTES * (1 + self.columns) * expected


def _binomial(count: int, successes: int, probability: float) -> float:
    if probability in (0.0, 1.0):
        return float(successes == count * probability)
    logarithm = (
        math.lgamma(count + 1)
        - math.lgamma(successes + 1)
        - math.lgamma(count - successes + 1)
        + successes * math.log(probability)
        + (count - successes) * math.log1p(-probability)
    )
    return math.exp(logarithm)
