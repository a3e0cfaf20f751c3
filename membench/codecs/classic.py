"""COO, ELL and DIA: what EPMC compares the sizes of VPEncoding and CSR with (Section 5.5, Figure 13).

All lay a map's elements out as a matrix of 256 columns, its last row filled up with zeros, and use 32-bit numbers.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from membench.codec import Codec, Encoded, flatten

_NUMBER_BYTES = 4


@dataclass(frozen=True)
class _Matrix(Codec):
    columns: int = 256

    def _rows(self, elements: int) -> int:
        return -(-elements // self.columns)

    def _matrix(self, tensor: Tensor) -> Tensor:
        """Return the bits of a tensor's elements as a matrix."""
        flat = flatten(tensor).view(torch.int32)
        missing = self._rows(flat.numel()) * self.columns - flat.numel()
        return torch.nn.functional.pad(flat, (0, missing)).view(-1, self.columns)

    def _tensor(self, matrix: Tensor, shape: torch.Size) -> Tensor:
        return matrix.view(-1)[: shape.numel()].view(torch.float32).view(shape)

    def _zeros(self, encoded: Encoded) -> Tensor:
        rows = self._rows(encoded.shape.numel())
        return torch.zeros(rows, self.columns, dtype=torch.int32, device=encoded.data.device)


def _join(*arrays: Tensor) -> Tensor:
    return torch.cat([array.to(torch.int32).reshape(-1) for array in arrays]).view(torch.uint8)


@dataclass(frozen=True)
class COO(_Matrix):
    """Row, column and value of each element that is not zero: 12 bytes."""

    def size_bytes(self, nonzeros: int) -> int:
        return 3 * _NUMBER_BYTES * nonzeros

    def expected_size_bytes(self, elements: int, density: float) -> float:
        return self.size_bytes(round(density * elements))

    def encode(self, tensor: Tensor) -> Encoded:
        matrix = self._matrix(tensor)
        rows, columns = matrix.nonzero(as_tuple=True)
        return Encoded(_join(rows, columns, matrix[rows, columns]), tensor.shape)

    def decode(self, encoded: Encoded) -> Tensor:
        rows, columns, values = encoded.data.view(torch.int32).view(3, -1)
        matrix = self._zeros(encoded)
        matrix[rows.long(), columns.long()] = values
        return self._tensor(matrix, encoded.shape)


@dataclass(frozen=True)
class ELL(_Matrix):
    """Columns and values of each row, as many in all rows as in the fullest; the rest is marked by column -1."""

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

    def encode(self, tensor: Tensor) -> Encoded:
        matrix = self._matrix(tensor)
        rows, columns = matrix.nonzero(as_tuple=True)
        counts = torch.bincount(rows, minlength=len(matrix))
        slots = torch.arange(len(rows), device=matrix.device) - (counts.cumsum(0) - counts)[rows]
        shape = (len(matrix), int(counts.max()) if len(matrix) else 0)
        kept_columns, kept_values = matrix.new_full(shape, -1), matrix.new_zeros(shape)
        kept_columns[rows, slots] = columns.int()
        kept_values[rows, slots] = matrix[rows, columns]
        return Encoded(_join(kept_columns, kept_values), tensor.shape)

    def decode(self, encoded: Encoded) -> Tensor:
        matrix = self._zeros(encoded)
        if encoded.size_bytes:
            columns, values = encoded.data.view(torch.int32).view(2, len(matrix), -1)
            rows, slots = (columns >= 0).nonzero(as_tuple=True)
            matrix[rows, columns[rows, slots].long()] = values[rows, slots]
        return self._tensor(matrix, encoded.shape)


@dataclass(frozen=True)
class DIA(_Matrix):
    """Each diagonal that is not all zero, as long as a row, after its number."""

    def size_bytes(self, diagonals: int) -> int:
        return _NUMBER_BYTES * diagonals * (1 + self.columns)

    def expected_size_bytes(self, elements: int, density: float) -> float:
        rows = self._rows(elements)
        expected = sum(
            1 - (1 - density) ** min(offset + rows, rows, self.columns, self.columns - offset)
            for offset in range(1 - rows, self.columns)
        )
        return _NUMBER_BYTES * (1 + self.columns) * expected

    def encode(self, tensor: Tensor) -> Encoded:
        matrix = self._matrix(tensor)
        rows, columns = matrix.nonzero(as_tuple=True)
        diagonals, numbers = torch.unique(columns - rows, return_inverse=True)
        kept = matrix.new_zeros(len(diagonals), self.columns)
        kept[numbers, columns] = matrix[rows, columns]
        return Encoded(_join(diagonals, kept), tensor.shape)

    def decode(self, encoded: Encoded) -> Tensor:
        matrix = self._zeros(encoded)
        numbers = encoded.data.view(torch.int32)
        count = len(numbers) // (1 + self.columns)
        diagonals, kept = numbers[:count].long(), numbers[count:].view(count, self.columns)
        diagonal, columns = kept.nonzero(as_tuple=True)
        matrix[columns - diagonals[diagonal], columns] = kept[diagonal, columns]
        return self._tensor(matrix, encoded.shape)


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
