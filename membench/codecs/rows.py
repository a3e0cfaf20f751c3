"""Compressed rows: CSR, and VPEncoding, which is CSR with narrower numbers (EPMC, Section 4.3).

    elements in a row  ->  a matrix of `columns` columns, its last row filled up with zeros
    a piece of rows at a time:
        where = positions of the elements that are not zero, in order
        values  += elements[where], in the value format          columns += where mod columns
        row ends = how many of `where` lie before the end of each row, counted from the start of the row's block

What is zero is decided by the bits, so that -0.0 comes back as it was. Legality: a column index holds 0 to columns - 1,
and a row end at most `columns` times the rows of a block. UINT8 indices so allow 256 columns (EPMC says fewer than 256),
and UINT16 row ends 65,535 non-zeros. EPMC does not say what it does about larger maps. Here rows are cut into blocks
that UINT16 always suffices for, full or not, and a block has one 32-bit number for the non-zeros before it: 4 bytes in
65,280 elements, where a count for each row would still need a sum over all rows before anything can be decoded. A map
that is one block is plain CSR: that number is then the leading 0 of its row offsets.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from membench.codec import EncodingOverflow, MapCodec
from membench.codecs.arrays import Array, arrays_bytes, carve, scalar
from membench.codecs.values import FORMATS, ValueFormat
from membench.errors import MembenchError

_LARGEST = {torch.uint8: 2**8 - 1, torch.uint16: 2**16 - 1, torch.int32: 2**31 - 1}


class _Kept(NamedTuple):
    """The arrays of an encoded map."""

    block_starts: Tensor  # non-zeros before each block
    row_ends: Tensor
    values: Tensor
    columns: Tensor


class _Rooms(NamedTuple):
    """Memory for the steps of one piece."""

    where: Tensor
    columns: Tensor
    ends: Tensor
    other: Tensor  # of a number for each row
    total: Tensor
    values: Tensor
    mask: Tensor
    rest: Tensor


@dataclass(frozen=True)
class CompressedRows(MapCodec):
    """CSR over a map's elements in a row.

    Attributes:
        values: name of the value format.
        columns: of the matrix that the map is laid out as.
        column_type: of a column index.
        offset_type: of a row's end within its block.
        piece_elements: about how many are worked on at a time; bounds the staging buffer.
        streams: see `MapCodec`.

    Raises:
        MembenchError: the integers are too narrow for the columns, or there is no such value format.
    """

    values: str
    columns: int
    column_type: torch.dtype
    offset_type: torch.dtype
    piece_elements: int = 2**20
    streams: int = 1

    def __post_init__(self) -> None:
        if self.values not in FORMATS:
            raise MembenchError(f"there is no value format {self.values!r}; choose of {', '.join(FORMATS)}")
        widest = min(_LARGEST[self.column_type] + 1, _LARGEST[self.offset_type])
        if not 1 <= self.columns <= widest:
            raise MembenchError(
                f"{self.columns} columns do not fit {self.column_type} indices and {self.offset_type} row ends; "
                f"choose 1 to {widest}"
            )

    @property
    def rounding(self) -> float:
        return self._format.relative_error

    def size_bytes(self, elements: int, nonzeros: int) -> int:
        return arrays_bytes(*self._arrays(elements, nonzeros))

    def staging_bytes(self, elements: int) -> int:
        piece = min(elements, self._piece_rows(elements) * self.columns)
        return arrays_bytes(*self._staging(piece)) + self._format.staging_bytes(piece)

    # ---- layout -------------------------------------------------------------------------------------

    @property
    def _format(self) -> ValueFormat:
        return FORMATS[self.values]

    @property
    def _block_rows(self) -> int:
        return _LARGEST[self.offset_type] // self.columns

    def _rows(self, elements: int) -> int:
        return -(-elements // self.columns)

    def _blocks(self, elements: int) -> int:
        return max(1, -(-self._rows(elements) // self._block_rows))

    def _arrays(self, elements: int, nonzeros: int) -> list[Array]:
        """Return `_Kept`'s arrays, larger elements first."""
        arrays = [
            (torch.int32, self._blocks(elements)),
            (self.offset_type, self._rows(elements)),
            self._format.arrays(nonzeros),
            (self.column_type, nonzeros),
        ]
        return [arrays[i] for i in self._order]

    @property
    def _order(self) -> list[int]:
        sizes = [4, self.offset_type.itemsize, self._format.arrays(0)[0].itemsize, self.column_type.itemsize]
        return sorted(range(4), key=lambda i: -sizes[i])

    def _carve(self, data: Tensor, elements: int) -> _Kept:
        views = carve(data, *self._arrays(elements, self.capacity(elements, data.numel())))
        return _Kept(*(view for _, view in sorted(zip(self._order, views, strict=True))))

    def _piece_rows(self, elements: int) -> int:
        """Return the rows of a piece: whole blocks, unless one block holds the map."""
        rows = max(1, self.piece_elements // self.columns)
        if self._blocks(elements) == 1:
            return rows
        return max(1, rows // self._block_rows) * self._block_rows

    def _pieces(self, elements: int) -> Iterator[range]:
        """Yield the rows of each piece."""
        step, rows = self._piece_rows(elements), self._rows(elements)
        return (range(row, min(row + step, rows)) for row in range(0, rows, step))

    def _staging(self, piece: int) -> list[Array]:
        """Return `_Rooms`' arrays."""
        rows = self._rows(piece)
        integers = [piece + 1, piece, rows, rows, 1]
        return [*((torch.int64, count) for count in integers), (torch.float32, piece), (torch.bool, piece)]

    def _carve_staging(self, staging: Tensor, elements: int) -> _Rooms:
        piece = min(elements, self._piece_rows(elements) * self.columns)
        of_format = self._format.staging_bytes(piece)  # first, for it is a multiple of eight bytes
        return _Rooms._make([*carve(staging[of_format:], *self._staging(piece)), staging[:of_format]])

    # ---- encode -------------------------------------------------------------------------------------

    def encode_into(self, source: Tensor, target: Tensor, staging: Tensor) -> None:
        elements = source.numel()
        kept, rooms = self._carve(target, elements), self._carve_staging(staging, elements)
        bits, zero = source.view(torch.int32), scalar(0, torch.int32)
        kept.block_starts.zero_()
        stored = 0
        for rows in self._pieces(elements):
            first, last = rows.start * self.columns, min(rows.stop * self.columns, elements)
            where = _positions(torch.ne(bits[first:last], zero, out=rooms.mask[: last - first]), rooms.where)
            count = where.numel()
            if stored + count > kept.columns.numel():
                raise EncodingOverflow(elements, kept.columns.numel())
            values = torch.index_select(source[first:last], 0, where, out=rooms.values[:count])
            self._format.store(values, kept.values, stored, rooms.rest)
            self._store_ends(kept, rows, where, stored, rooms)
            kept.columns[stored : stored + count].copy_(self._column_of(where))
            stored += count

    def _column_of(self, where: Tensor) -> Tensor:
        """Return columns in place of positions; a cast to 8 bits takes the remainder by 256 itself."""
        if self.columns == 256 and self.column_type is torch.uint8:
            return where
        return where.remainder_(scalar(self.columns))

    def _store_ends(self, kept: _Kept, rows: range, where: Tensor, stored: int, rooms: _Rooms) -> None:
        bounds = torch.arange(1, len(rows) + 1, out=rooms.other[: len(rows)]).mul_(scalar(self.columns))
        ends = torch.searchsorted(where, bounds, out=rooms.ends[: len(rows)])
        total = rooms.total.fill_(stored)
        if len(kept.block_starts) == 1:
            ends.add_(total)  # the only block starts at 0
        else:
            blocks = self._blocks_of(rows)
            starts = rooms.other[: len(blocks)]
            starts[0] = 0
            starts[1:].copy_(ends[self._block_rows - 1 :: self._block_rows][: len(blocks) - 1])
            self._shift(ends, starts, -1)
            kept.block_starts[blocks.start : blocks.stop].copy_(starts.add_(total))
        kept.row_ends[rows.start : rows.stop].copy_(ends)

    def _blocks_of(self, rows: range) -> range:
        return range(rows.start // self._block_rows, -(-rows.stop // self._block_rows))

    def _shift(self, ends: Tensor, starts: Tensor, sign: int) -> None:
        """Add its block's start to each row's end, or take it away."""
        full = len(ends) // self._block_rows
        whole, rest = ends[: full * self._block_rows], ends[full * self._block_rows :]
        whole.view(full, self._block_rows).add_(starts[:full, None], alpha=sign)
        rest.add_(starts[full:], alpha=sign)

    # ---- decode -------------------------------------------------------------------------------------

    def decode_into(self, source: Tensor, target: Tensor, staging: Tensor) -> None:
        elements = target.numel()
        kept, rooms = self._carve(source, elements), self._carve_staging(staging, elements)
        loaded = 0
        for rows in self._pieces(elements):
            first, last = rows.start * self.columns, min(rows.stop * self.columns, elements)
            ends = self._load_ends(kept, rows, rooms)
            count = int(ends[-1]) - loaded
            ends.sub_(rooms.total.fill_(loaded))
            where = rooms.where[: count + 1].zero_()
            where.scatter_add_(
                0, ends, rooms.other[: len(rows)].fill_(self.columns)
            )  # of each row that ends here
            where = where.cumsum_(0)[:count]  # where each one's row begins
            where.add_(rooms.columns[:count].copy_(kept.columns[loaded : loaded + count]))
            values = rooms.values[:count]
            self._format.load(kept.values, loaded, values, rooms.rest)
            target[first:last].zero_().scatter_(0, where, values)
            loaded += count

    def _load_ends(self, kept: _Kept, rows: range, rooms: _Rooms) -> Tensor:
        """Return the rows' ends, counted from the map's start."""
        ends = rooms.ends[: len(rows)].copy_(kept.row_ends[rows.start : rows.stop])
        if len(kept.block_starts) > 1:
            blocks = self._blocks_of(rows)
            starts = rooms.other[: len(blocks)].copy_(kept.block_starts[blocks.start : blocks.stop])
            self._shift(ends, starts, 1)
        return ends


def _positions(mask: Tensor, room: Tensor) -> Tensor:
    """Return where a mask is true, in memory that is there."""
    found = torch.empty(0, dtype=torch.int64, device=mask.device)
    found.set_(room.untyped_storage(), room.storage_offset(), (0, 1), (1, 1))
    torch.nonzero(mask, out=found)
    return found.view(-1)


def csr(*, columns: int = 256, values: str = "fp32", streams: int = 1) -> CompressedRows:
    """Return CSR as cuSPARSE has it: 32-bit columns and row offsets; lossless with single-precision values."""
    return CompressedRows(values, columns, torch.int32, torch.int32, streams=streams)


_OFFSETS = {"uint8": torch.uint8, "uint16": torch.uint16}


def vp_encoding(
    *,
    values: str = "fp16",
    columns: int = 256,
    row_offsets: str = "uint16",
    piece_elements: int = 2**20,
    streams: int = 1,
) -> CompressedRows:
    """Return EPMC's VPEncoding: narrow values, 8-bit columns, 16-bit row offsets, or 8-bit ones for narrow matrices.

    Raises:
        MembenchError: more than 256 columns, or more than a row offset of this width can count.
    """
    if row_offsets not in _OFFSETS:
        raise MembenchError(f"there are no {row_offsets!r} row offsets; choose of {', '.join(_OFFSETS)}")
    return CompressedRows(values, columns, torch.uint8, _OFFSETS[row_offsets], piece_elements, streams)
