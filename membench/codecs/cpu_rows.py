"""Compressed rows on the CPU: each row is read and written once."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from membench.codecs.arrays import Rows
from membench.codecs.values import EXACT_BITS, PACKED_BITS, ValueFormat, numbers
from membench.core.libraries.loops import compiled

_1, _2, _3, _4, _5, _6, _8 = (np.uint64(number) for number in (1, 2, 3, 4, 5, 6, 8))
_UPPER = np.uint64(0x300)  # bits of a ten-bit code


def encode(source: Tensor, rows: Rows, kept_as: ValueFormat, columns: int, block_rows: int) -> bool:
    """Encode flat elements; return whether they fit."""
    return bool(_encode(_words(source), _arrays(rows), kept_as, columns, block_rows))


def decode(rows: Rows, target: Tensor, kept_as: ValueFormat, columns: int, block_rows: int) -> None:
    """Undo `encode`."""
    table = _words(numbers(kept_as.bits))
    _decode(_arrays(rows), _words(target), table, kept_as.bits, columns, block_rows)


def _words(tensor: Tensor) -> Any:
    return tensor.view(torch.uint32).numpy()


def _arrays(rows: Rows) -> Rows:
    return Rows._make(tensor.numpy() for tensor in rows)


@compiled
def _encode(words: Any, rows: Rows, kept_as: ValueFormat, columns: int, block_rows: int) -> bool:
    row_words, row_columns = np.empty(columns, np.uint32), np.empty(columns, rows.columns.dtype)
    rows.block_starts[0] = 0
    block_start: Any = 0
    stored: Any = 0
    for row in range(len(rows.row_ends)):
        if row % block_rows == 0:
            rows.block_starts[row // block_rows] = block_start = stored
        first = row * columns
        count: Any = np.uint64(0)
        for column in range(min(columns, len(words) - first)):  # no branch: zeros are overwritten
            word = words[first + column]
            row_words[count] = word
            row_columns[count] = column
            count += np.uint64(word != 0)
        end: Any = stored + np.int64(count)
        if end > len(rows.columns):
            return False
        for at in range(stored, end):
            rows.columns[at] = row_columns[at - stored]
        _store(row_words, rows.codes, stored, end, kept_as)
        rows.row_ends[row] = end - block_start
        stored = end
    if kept_as.bits == PACKED_BITS:
        for at in range(stored, stored + -stored % 4):  # unused codes of the last group
            rows.codes[5 * (at >> 2) + (at & 3)] = 0
    return True


@compiled
def _store(words: Any, codes: Any, stored: int, end: int, kept_as: ValueFormat) -> None:
    if kept_as.bits == EXACT_BITS:
        for at in range(stored, end):
            codes[at] = words[at - stored]
    elif kept_as.bits == PACKED_BITS:
        for at in range(stored, end):
            code = _code(np.int64(words[at - stored]), kept_as)
            byte, place = 5 * (at >> 2), at & 3
            codes[byte + place] = code & 0xFF
            others = codes[byte + 4] if place else np.uint8(0)
            codes[byte + 4] = others | (code >> 8) << 2 * place
    else:
        for at in range(stored, end):
            codes[at] = _code(np.int64(words[at - stored]), kept_as)


@compiled
def _code(word: Any, kept_as: ValueFormat) -> Any:
    """Round a number by its bits: shift its 24 significant bits, the leading one included, into the format."""
    magnitude = word & 0x7FFFFFFF
    exponent, lowest = magnitude >> 23, 128 - kept_as.exponent_bias  # of the format's normal numbers
    shift = min(23 - kept_as.mantissa_bits + max(lowest - exponent, 0), 25)
    code = _shifted((magnitude & 0x7FFFFF) | 0x800000, shift)
    code = min((max(exponent - lowest, 0) << kept_as.mantissa_bits) + code, kept_as.largest)
    code = kept_as.nan if magnitude > 0x7F800000 else code
    if kept_as.dropped_bits:
        code = _shifted(code, kept_as.dropped_bits)
    return code | (word >> 31) << (kept_as.bits - 1)


@compiled
def _shifted(number: Any, shift: int) -> Any:
    """Drop bits, to nearest, ties to even."""
    return (number + (1 << (shift - 1)) - 1 + ((number >> shift) & 1)) >> shift


@compiled
def _decode(rows: Rows, words: Any, table: Any, bits: int, columns: int, block_rows: int) -> None:
    block_start = stored = np.uint64(0)
    for row in range(len(rows.row_ends)):
        if row % block_rows == 0:
            block_start = np.uint64(rows.block_starts[row // block_rows])
        end = block_start + np.uint64(rows.row_ends[row])
        first = np.uint64(row * columns)
        for at in range(first, min(first + np.uint64(columns), np.uint64(len(words)))):
            words[at] = 0
        if bits == EXACT_BITS:
            for at in range(stored, end):
                words[first + np.uint64(rows.columns[at])] = rows.codes[at]
        elif bits == PACKED_BITS:
            _unpack(rows.columns, rows.codes, stored, end, table, words, first)
        else:
            for at in range(stored, end):
                words[first + np.uint64(rows.columns[at])] = table[rows.codes[at]]
        stored = end


@compiled
def _unpack(columns: Any, codes: Any, at: Any, end: Any, table: Any, words: Any, first: Any) -> None:
    """Decode ten-bit codes: one at a time up to a group, then by groups, then one at a time."""
    while at < end:
        group = at >> _2
        byte = group * _5
        upper = np.uint64(codes[byte + _4]) << _8
        if at == group * _4 and at + _4 <= end:
            words[first + np.uint64(columns[at])] = table[upper & _UPPER | np.uint64(codes[byte])]
            words[first + np.uint64(columns[at + _1])] = table[upper >> _2 & _UPPER | np.uint64(codes[byte + _1])]
            words[first + np.uint64(columns[at + _2])] = table[upper >> _4 & _UPPER | np.uint64(codes[byte + _2])]
            words[first + np.uint64(columns[at + _3])] = table[upper >> _6 & _UPPER | np.uint64(codes[byte + _3])]
            at += _4
        else:
            place = at & _3
            words[first + np.uint64(columns[at])] = table[
                upper >> place + place & _UPPER | np.uint64(codes[byte + place])
            ]
            at += _1
