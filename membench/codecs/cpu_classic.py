"""COO, ELL and DIA on the CPU. Matrices and what they become are bits of numbers, as 32-bit integers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from membench.codecs.loops import compiled

_TILE = 256  # columns: a cache line of a diagonal, and as many rows


def encode_coo(matrix: Tensor) -> Tensor:
    """Return rows, columns and values, one after another."""
    return _bytes(_encode_coo(matrix.numpy()))


def decode_coo(data: Tensor, matrix: Tensor) -> None:
    """Fill a matrix."""
    _decode_coo(_numbers(data), matrix.numpy())


def encode_ell(matrix: Tensor) -> Tensor:
    """Return columns and values of each row, after all columns all values."""
    return _bytes(_encode_ell(matrix.numpy()))


def decode_ell(data: Tensor, matrix: Tensor) -> None:
    """Fill a matrix."""
    _decode_ell(_numbers(data), matrix.numpy())


def encode_dia(matrix: Tensor) -> Tensor:
    """Return the numbers of the diagonals, then their elements, each by its column."""
    return _bytes(_encode_dia(matrix.numpy()))


def decode_dia(data: Tensor, matrix: Tensor) -> None:
    """Fill a matrix."""
    _decode_dia(_numbers(data), matrix.numpy())


def _bytes(numbers: Any) -> Tensor:
    return torch.from_numpy(numbers).view(torch.uint8)


def _numbers(data: Tensor) -> Any:
    return data.view(torch.int32).numpy()


@compiled
def _encode_coo(matrix: Any) -> Any:
    count = np.count_nonzero(matrix)
    kept = np.empty(3 * count, np.int32)
    at = 0
    for row in range(len(matrix)):
        for column in range(matrix.shape[1]):
            if matrix[row, column]:
                kept[at], kept[count + at], kept[2 * count + at] = row, column, matrix[row, column]
                at += 1
    return kept


@compiled
def _decode_coo(kept: Any, matrix: Any) -> None:
    count = len(kept) // 3
    rows, columns, values = kept[:count], kept[count : 2 * count], kept[2 * count :]
    begin = 0
    for row in range(len(matrix)):
        elements = matrix[row]
        elements[:] = 0
        end = _end_of_row(rows, row, begin, min(begin + len(elements), count))
        for at in range(np.uint64(begin), np.uint64(end)):
            elements[np.uint64(columns[at])] = values[at]
        begin = end


@compiled
def _end_of_row(rows: Any, row: int, low: int, high: int) -> int:
    """Search numbers in order for the first one above another: fewer of them need to be read."""
    while low < high:
        middle = (low + high) // 2
        if rows[middle] <= row:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _encode_ell(matrix: Any) -> Any:
    rows, width = len(matrix), 0
    for row in range(rows):
        width = max(width, int(np.count_nonzero(matrix[row])))
    kept = np.empty((2, rows, width), np.int32)
    for row in range(rows):
        at = 0
        for column in range(matrix.shape[1]):
            if matrix[row, column]:
                kept[0, row, at], kept[1, row, at] = column, matrix[row, column]
                at += 1
        kept[0, row, at:] = -1
        kept[1, row, at:] = 0
    return kept.reshape(-1)


@compiled
def _decode_ell(kept: Any, matrix: Any) -> None:
    rows = len(matrix)
    width = len(kept) // (2 * rows) if rows else 0
    columns, values = kept[: rows * width], kept[rows * width :]
    for row in range(rows):
        matrix[row] = 0
        for at in range(row * width, (row + 1) * width):
            if columns[at] < 0:
                break
            matrix[row, columns[at]] = values[at]


@compiled
def _encode_dia(matrix: Any) -> Any:
    rows, columns = matrix.shape
    is_kept = np.zeros(max(0, rows + columns - 1), np.bool_)  # from the lower left diagonal on
    for row in range(rows):
        for column in range(columns):
            is_kept[column - row + rows - 1] |= matrix[row, column] != 0
    diagonals = np.nonzero(is_kept)[0] - (rows - 1)
    count = len(diagonals)
    kept = np.empty(count * (1 + columns), np.int32)
    kept[:count] = diagonals
    kept[count:] = 0
    elements = matrix.reshape(-1)
    for first in range(0, columns, _TILE):
        for slot in range(count):
            begin, end = _columns(diagonals[slot], first, rows, columns)
            at = np.uint64((begin - diagonals[slot]) * columns + begin)
            for place in range(count + slot * columns + begin, count + slot * columns + end):
                kept[place] = elements[at]
                at += np.uint64(columns + 1)
    return kept


@compiled
def _decode_dia(kept: Any, matrix: Any) -> None:
    """By rows: they are written once, and of each diagonal a cache line serves as many rows as it has numbers."""
    rows, columns = matrix.shape
    count = len(kept) // (1 + columns)
    if not count:
        matrix[:] = 0
        return
    start = np.zeros(rows + columns - 1, np.uint64)  # of each diagonal, from the lower left one on
    mask = np.zeros(rows + columns - 1, np.int32)  # no bits of a diagonal that is not kept
    for slot in range(count):
        start[kept[slot] + rows - 1] = count + slot * columns
        mask[kept[slot] + rows - 1] = -1
    for row in range(rows):
        lowest = np.uint64(rows - 1 - row)
        for column in range(np.uint64(columns)):
            diagonal = lowest + column
            matrix[row, column] = kept[start[diagonal] + column] & mask[diagonal]


@compiled
def _columns(diagonal: int, first: int, rows: int, columns: int) -> tuple[int, int]:
    """Return which columns from the first one of a tile on a diagonal crosses."""
    return max(first, diagonal), min(first + _TILE, columns, rows + diagonal)
