"""COO, ELL and DIA by torch's operators, for a GPU: no strategy stores maps so, and only their sizes count.

They run anywhere; the tests compare them with the CPU's loops. Matrices hold bits of numbers, as 32-bit integers.
"""

import torch
from torch import Tensor


def encode_coo(matrix: Tensor) -> Tensor:
    """Return rows, columns and values, one after another."""
    rows, columns = matrix.nonzero(as_tuple=True)
    return _bytes(rows, columns, matrix[rows, columns])


def decode_coo(data: Tensor, matrix: Tensor) -> None:
    """Fill a matrix."""
    rows, columns, values = data.view(torch.int32).view(3, -1)
    matrix.zero_()[rows.long(), columns.long()] = values


def encode_ell(matrix: Tensor) -> Tensor:
    """Return columns and values of each row, after all columns all values."""
    rows, columns = matrix.nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=len(matrix))
    slots = torch.arange(len(rows), device=matrix.device) - (counts.cumsum(0) - counts)[rows]
    shape = (len(matrix), int(counts.max()) if len(matrix) else 0)
    kept_columns, kept_values = matrix.new_full(shape, -1), matrix.new_zeros(shape)
    kept_columns[rows, slots] = columns.int()
    kept_values[rows, slots] = matrix[rows, columns]
    return _bytes(kept_columns, kept_values)


def decode_ell(data: Tensor, matrix: Tensor) -> None:
    """Fill a matrix."""
    matrix.zero_()
    if data.numel():
        columns, values = data.view(torch.int32).view(2, len(matrix), -1)
        rows, slots = (columns >= 0).nonzero(as_tuple=True)
        matrix[rows, columns[rows, slots].long()] = values[rows, slots]


def encode_dia(matrix: Tensor) -> Tensor:
    """Return the numbers of the diagonals, then their elements, each by its column."""
    rows, columns = matrix.nonzero(as_tuple=True)
    diagonals, numbers = torch.unique(columns - rows, return_inverse=True)
    kept = matrix.new_zeros(len(diagonals), matrix.shape[1])
    kept[numbers, columns] = matrix[rows, columns]
    return _bytes(diagonals, kept)


def decode_dia(data: Tensor, matrix: Tensor) -> None:
    """Fill a matrix."""
    numbers = data.view(torch.int32)
    count = len(numbers) // (1 + matrix.shape[1])
    diagonals, kept = numbers[:count].long(), numbers[count:].view(count, matrix.shape[1])
    slots, columns = kept.nonzero(as_tuple=True)
    matrix.zero_()[columns - diagonals[slots], columns] = kept[slots, columns]


def _bytes(*arrays: Tensor) -> Tensor:
    return torch.cat([array.to(torch.int32).reshape(-1) for array in arrays]).view(torch.uint8)
