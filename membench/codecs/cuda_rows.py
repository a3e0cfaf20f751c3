"""Compressed rows on a GPU, by Triton kernels. Tested in Triton's interpreter and on an H200.

    encode:  count each row's non-zeros  ->  sum up within blocks, then over blocks  ->  scatter columns and codes
    decode:  zeros  ->  scatter numbers

Nothing is allocated: counts and sums are computed in the memory of row ends and block starts. Ten-bit codes are packed
in a pass of their own, because a group of four may span several rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from membench.codecs.arrays import Rows
from membench.codecs.values import EXACT_BITS, PACKED_BITS, ValueFormat

_ROWS = 16  # of a program
_SUMMED = 1024  # numbers at a time
_GROUPS = 256  # packed by a program
_EXACT = tl.constexpr(EXACT_BITS)
_PACKED = tl.constexpr(PACKED_BITS)


def encode(source: Tensor, rows: Rows, kept_as: ValueFormat, columns: int, block_rows: int) -> bool:
    """Encode flat elements; return whether they fit, for which the host waits."""
    words, rows = source.view(torch.int32), _integers(rows)
    count, blocks = len(rows.row_ends), len(rows.block_starts)
    rows.block_starts.zero_()
    if not count:
        return True
    tiles, lanes = (triton.cdiv(count, _ROWS),), triton.next_power_of_2(columns)
    count_kernel[tiles](words, rows.row_ends, len(words), count, columns, _ROWS, lanes)
    sum_rows_kernel[(blocks,)](rows.row_ends, rows.block_starts, count, min(block_rows, count), _SUMMED)
    sum_blocks_kernel[(1,)](rows.block_starts, blocks, _SUMMED)
    stored = int(rows.block_starts[-1]) + int(rows.row_ends[-1])
    if stored > len(rows.columns):
        return False
    scatter_kernel[tiles](words, *rows, len(words), count, block_rows, columns, *kept_as, _ROWS, lanes)
    if kept_as.bits == PACKED_BITS and stored:
        programs = (triton.cdiv(stored, 4 * _GROUPS),)
        pack_kernel[programs](words, *rows, stored, count, block_rows, columns, *kept_as, _GROUPS)
    return True


def decode(rows: Rows, target: Tensor, kept_as: ValueFormat, columns: int, block_rows: int) -> None:
    """Undo `encode`."""
    words, rows = target.view(torch.int32).zero_(), _integers(rows)
    count = len(rows.row_ends)
    if count:
        tiles, lanes = (triton.cdiv(count, _ROWS),), triton.next_power_of_2(columns)
        decode_kernel[tiles](words, *rows, count, block_rows, columns, kept_as.bits, _ROWS, lanes)


def _integers(rows: Rows) -> Rows:
    """Return the arrays with exact values as plain integers."""
    exact = rows.codes.dtype is torch.uint32
    return rows._replace(codes=rows.codes.view(torch.int32)) if exact else rows


@triton.jit
def count_kernel(words, row_ends, elements, count, columns: tl.constexpr, tile: tl.constexpr, lanes: tl.constexpr):
    """Store each row's count of non-zeros."""
    row, lane = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, lanes)[None, :]
    at = row.to(tl.int64)[:, None] * columns + lane
    word = tl.load(words + at, mask=(lane < columns) & (at < elements), other=0)
    tl.store(row_ends + row, tl.sum((word != 0).to(tl.int32), axis=1), mask=row < count)


@triton.jit
def sum_rows_kernel(row_ends, block_counts, count, block_rows, step: tl.constexpr):
    """Turn a block's counts into the ends of its rows, and store their sum."""
    block = tl.program_id(0)
    total = 0
    for first in range(0, block_rows, step):
        row = first + tl.arange(0, step)
        at = block.to(tl.int64) * block_rows + row
        inside = (row < block_rows) & (at < count)
        found = tl.load(row_ends + at, mask=inside, other=0).to(tl.int32)
        tl.store(row_ends + at, total + tl.cumsum(found, axis=0), mask=inside)
        total += tl.sum(found, axis=0)
    tl.store(block_counts + block, total)


@triton.jit
def sum_blocks_kernel(block_counts, blocks, step: tl.constexpr):
    """Turn the blocks' counts into the number of non-zeros before each block."""
    total = 0
    for first in range(0, blocks, step):
        at = first + tl.arange(0, step)
        found = tl.load(block_counts + at, mask=at < blocks, other=0)
        tl.store(block_counts + at, total + tl.cumsum(found, axis=0) - found, mask=at < blocks)
        total += tl.sum(found, axis=0)


@triton.jit
def _first_of_row(block_starts, row_ends, row, count, block_rows):
    """Return the number of non-zeros before a row."""
    start = tl.load(block_starts + row // block_rows, mask=row < count, other=0)
    is_within = (row % block_rows > 0) & (row < count)
    return start.to(tl.int64) + tl.load(row_ends + row - 1, mask=is_within, other=0).to(tl.int64)


@triton.jit
def scatter_kernel(
    words, block_starts, row_ends, codes, kept_columns, elements, count, block_rows, columns: tl.constexpr,
    bits: tl.constexpr, mantissa_bits: tl.constexpr, exponent_bias: tl.constexpr, largest: tl.constexpr,
    nan: tl.constexpr, dropped_bits: tl.constexpr, tile: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Write the columns and codes of each row's non-zeros."""
    row, lane = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, lanes)[None, :]
    at = row.to(tl.int64)[:, None] * columns + lane
    word = tl.load(words + at, mask=(lane < columns) & (at < elements), other=0)
    kept = word != 0
    first = _first_of_row(block_starts, row_ends, row, count, block_rows)
    place = first[:, None] + tl.cumsum(kept.to(tl.int32), axis=1) - 1
    tl.store(kept_columns + place, tl.broadcast_to(lane, (tile, lanes)), mask=kept)
    if bits == _EXACT:
        tl.store(codes + place, word, mask=kept)
    elif bits != _PACKED:
        code = _code(word, bits, mantissa_bits, exponent_bias, largest, nan, dropped_bits)
        tl.store(codes + place, code, mask=kept)


@triton.jit
def pack_kernel(
    words, block_starts, row_ends, codes, kept_columns, stored, count, block_rows, columns: tl.constexpr,
    bits: tl.constexpr, mantissa_bits: tl.constexpr, exponent_bias: tl.constexpr, largest: tl.constexpr,
    nan: tl.constexpr, dropped_bits: tl.constexpr, groups: tl.constexpr,
):  # fmt: skip
    """Find the row of each non-zero by bisection, and write its ten-bit code."""
    group = tl.program_id(0).to(tl.int64) * groups + tl.arange(0, groups)[:, None]
    lane = tl.arange(0, 4)[None, :]
    place = 4 * group + lane
    low, high = tl.zeros((groups, 4), tl.int32), tl.zeros((groups, 4), tl.int32) + count
    left = count
    while left > 0:
        middle = (low + high) // 2
        is_open = low < high
        end = tl.load(block_starts + middle // block_rows, mask=is_open, other=0).to(tl.int64)
        end += tl.load(row_ends + middle, mask=is_open, other=0).to(tl.int64)
        low, high = (
            tl.where(is_open & (end <= place), middle + 1, low),
            tl.where(is_open & (end > place), middle, high),
        )
        left = left // 2
    inside = place < stored
    column = tl.load(kept_columns + place, mask=inside, other=0).to(tl.int64)
    word = tl.load(words + low.to(tl.int64) * columns + column, mask=inside, other=0)
    code = tl.where(inside, _code(word, bits, mantissa_bits, exponent_bias, largest, nan, dropped_bits), 0)
    is_group = 4 * group < stored
    tl.store(codes + 5 * group + lane, code & 0xFF, mask=tl.broadcast_to(is_group, (groups, 4)))
    upper = tl.sum((code >> 8) << 2 * lane, axis=1)
    tl.store(codes + 5 * group + 4, upper[:, None], mask=is_group)


@triton.jit
def _code(
    word, bits: tl.constexpr, mantissa_bits: tl.constexpr, exponent_bias: tl.constexpr, largest: tl.constexpr,
    nan: tl.constexpr, dropped_bits: tl.constexpr,
):  # fmt: skip
    """Round as the CPU's `_code` does."""
    magnitude = word & 0x7FFFFFFF
    exponent = magnitude >> 23
    lowest: tl.constexpr = 128 - exponent_bias
    shift = tl.minimum(23 - mantissa_bits + tl.maximum(lowest - exponent, 0), 25)
    code = _shifted((magnitude & 0x7FFFFF) | 0x800000, shift)
    code = tl.minimum((tl.maximum(exponent - lowest, 0) << mantissa_bits) + code, largest)
    code = tl.where(magnitude > 0x7F800000, nan, code)
    if dropped_bits > 0:
        code = _shifted(code, dropped_bits)
    return code | ((word >> 31) & 1) << (bits - 1)


@triton.jit
def _shifted(number, shift):
    """Drop bits, to nearest, ties to even."""
    one = number * 0 + 1
    return (number + (one << (shift - 1)) - 1 + ((number >> shift) & 1)) >> shift


@triton.jit
def decode_kernel(
    words, block_starts, row_ends, codes, kept_columns, count, block_rows, columns: tl.constexpr,
    bits: tl.constexpr, tile: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Write each row's numbers, and zeros between them."""
    row, lane = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, lanes)[None, :]
    first = _first_of_row(block_starts, row_ends, row, count, block_rows)
    start = tl.load(block_starts + row // block_rows, mask=row < count, other=0).to(tl.int64)
    end = start + tl.load(row_ends + row, mask=row < count, other=0).to(tl.int64)
    place = first[:, None] + lane
    kept = (place < end[:, None]) & (row < count)[:, None]
    column = tl.load(kept_columns + place, mask=kept, other=0).to(tl.int64)
    if bits == _PACKED:
        byte = 5 * (place // 4)
        upper = tl.load(codes + byte + 4, mask=kept, other=0).to(tl.int32) >> (2 * (place % 4)).to(tl.int32)
        code = tl.load(codes + byte + place % 4, mask=kept, other=0).to(tl.int32) | (upper & 3) << 8
    else:
        code = tl.load(codes + place, mask=kept, other=0).to(tl.int32)
    tl.store(words + row.to(tl.int64)[:, None] * columns + column, _number(code, bits), mask=kept)


@triton.jit
def _number(code, bits: tl.constexpr):
    """Return the bits of a code's single-precision number."""
    if bits == _EXACT:
        return code
    if bits == 8:  # half precision has two more bits of exponent: the same bits are 2 ** 8 times as small
        half = ((code & 0x7F) << 7).to(tl.int16).to(tl.float16, bitcast=True)
        word = (half.to(tl.float32) * 256.0).to(tl.int32, bitcast=True)
        return tl.where((code & 0x7F) == 0x7F, 0x7FF00000, word) | (code >> 7) << 31
    half = (code << (16 - bits)).to(tl.int16).to(tl.float16, bitcast=True)
    return half.to(tl.float32).to(tl.int32, bitcast=True)
