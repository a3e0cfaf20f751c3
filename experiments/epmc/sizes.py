"""COO, ELL and DIA, with which EPMC compares the sizes of VPEncoding and CSR (Section 5.5, Figure 13).

All lay a tensor's elements out as a matrix of 256 columns, its last row filled up with zeros, and use 32-bit numbers.
Strategies do not use them and only their sizes count, so they are written with torch's operators, for any device.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from membench.core.graph.codec import Codec, Encoded, flatten


@dataclass(frozen=True)
class _Matrix(Codec):
    columns: int = 256

    def encode(self, tensor: Tensor) -> Encoded:
        flat = flatten(tensor).view(torch.int32)
        missing = self._rows(flat.numel()) * self.columns - flat.numel()
        matrix = (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, self.columns)
        numbers = torch.cat([array.to(torch.int32).reshape(-1) for array in self._arrays(matrix)])
        return Encoded(numbers.view(torch.uint8), tensor.shape)

    def decode(self, encoded: Encoded) -> Tensor:
        """Return the tensor that was encoded, without the zeros that fill up its last row."""
        elements, device = encoded.shape.numel(), encoded.data.device
        matrix = torch.zeros(self._rows(elements), self.columns, dtype=torch.int32, device=device)
        self._fill(matrix, encoded.data.view(torch.int32))
        return matrix.view(-1)[:elements].view(torch.float32).view(encoded.shape)

    @abstractmethod
    def _arrays(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """Return the arrays of the encoded form of a matrix of 32-bit integers, the bits of its numbers."""

    @abstractmethod
    def _fill(self, matrix: Tensor, numbers: Tensor) -> None:
        """Write the elements of an encoded form into a matrix of zeros."""

    def _rows(self, elements: int) -> int:
        return -(-elements // self.columns)


@dataclass(frozen=True)
class COO(_Matrix):
    """Row, column and value of each element that is not zero: 12 bytes."""

    def _arrays(self, matrix: Tensor) -> tuple[Tensor, ...]:
        rows, columns = matrix.nonzero(as_tuple=True)
        return rows, columns, matrix[rows, columns]

    def _fill(self, matrix: Tensor, numbers: Tensor) -> None:
        rows, columns, values = numbers.view(3, -1)
        matrix[rows.long(), columns.long()] = values


@dataclass(frozen=True)
class ELL(_Matrix):
    """Columns and values of each row, padded to the length of the fullest row with column -1."""

    def _arrays(self, matrix: Tensor) -> tuple[Tensor, ...]:
        rows, columns = matrix.nonzero(as_tuple=True)
        counts = torch.bincount(rows, minlength=len(matrix))
        slots = torch.arange(len(rows), device=matrix.device) - (counts.cumsum(0) - counts)[rows]
        shape = (len(matrix), int(counts.max()) if len(matrix) else 0)
        kept_columns, kept_values = matrix.new_full(shape, -1), matrix.new_zeros(shape)
        kept_columns[rows, slots] = columns.int()
        kept_values[rows, slots] = matrix[rows, columns]
        return kept_columns, kept_values

    def _fill(self, matrix: Tensor, numbers: Tensor) -> None:
        if numbers.numel():
            columns, values = numbers.view(2, len(matrix), -1)
            rows, slots = (columns >= 0).nonzero(as_tuple=True)
            matrix[rows, columns[rows, slots].long()] = values[rows, slots]


@dataclass(frozen=True)
class DIA(_Matrix):
    """Each diagonal that is not all zero, as long as a row, after the numbers of these diagonals."""

    def _arrays(self, matrix: Tensor) -> tuple[Tensor, ...]:
        rows, columns = matrix.nonzero(as_tuple=True)
        diagonals, slots = torch.unique(columns - rows, return_inverse=True)
        kept = matrix.new_zeros(len(diagonals), matrix.shape[1])
        kept[slots, columns] = matrix[rows, columns]
        return diagonals, kept

    def _fill(self, matrix: Tensor, numbers: Tensor) -> None:
        count = len(numbers) // (1 + matrix.shape[1])
        diagonals, kept = numbers[:count].long(), numbers[count:].view(count, matrix.shape[1])
        slots, columns = kept.nonzero(as_tuple=True)
        matrix[columns - diagonals[slots], columns] = kept[slots, columns]
