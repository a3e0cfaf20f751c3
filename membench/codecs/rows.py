"""Compressed rows: CSR, and VPEncoding, which is CSR with narrower numbers (EPMC, Section 4.3).

    flat elements  ->  a matrix of `columns` columns, its last row filled up with zeros
    of each row:  values  += its elements that are not zero, in the value format
                  columns += their columns
                  row ends += number of values so far, counted from the start of the row's block

An element is zero if all its bits are, so that -0.0 is decoded exactly. A column index holds 0 to columns - 1, and a
row end at most `columns` times the rows of a block. So UINT8 indices allow 256 columns (EPMC: fewer than 256), and
UINT16 row ends 65,535 non-zeros. EPMC does not describe larger activations. Here rows are grouped into blocks for which
UINT16 always suffices, and a block has one 32-bit number for the non-zeros before it: 4 bytes in 65,280 elements, where
a count for each row would need a sum over all rows before anything can be decoded. A tensor of one block is plain CSR:
that number is then the leading 0 of its row offsets.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from membench.codecs.arrays import Array, Rows, arrays_bytes, carve
from membench.codecs.dispatch import kernels
from membench.codecs.values import FORMATS, ValueFormat
from membench.core.checks import COUNT, check
from membench.core.errors import MembenchError
from membench.core.graph.codec import ActivationCodec, EncodingOverflow

_LARGEST = {torch.uint8: 2**8 - 1, torch.uint16: 2**16 - 1, torch.int32: 2**31 - 1}


@dataclass(frozen=True)
class CompressedRows(ActivationCodec):
    """CSR over a tensor's flat elements.

    Attributes:
        values: name of the value format.
        columns: number of columns of the matrix as which the elements are laid out.
        column_type: type of a column index.
        offset_type: type of a row's end within its block.
        streams: see `ActivationCodec`.

    Raises:
        MembenchError: the integers are too narrow for the columns, the value format is unknown, or there are no
            streams.
    """

    host_waits: ClassVar[bool] = True

    values: str
    columns: int
    column_type: torch.dtype
    offset_type: torch.dtype
    streams: int = 1

    def __post_init__(self) -> None:
        if self.values not in FORMATS:
            raise MembenchError(f"there is no value format {self.values!r}; choose one of {', '.join(FORMATS)}")
        widest = min(_LARGEST[self.column_type] + 1, _LARGEST[self.offset_type])
        if not 1 <= self.columns <= widest:
            raise MembenchError(
                f"{self.columns} columns do not fit {self.column_type} indices and {self.offset_type} row ends; "
                f"choose 1 to {widest}"
            )
        check(COUNT, streams=self.streams)

    @property
    def rounding(self) -> float:
        return self._format.relative_error

    def size_bytes(self, elements: int, nonzeros: int) -> int:
        return arrays_bytes(*self._arrays(elements, nonzeros))

    def encode_into(self, source: Tensor, target: Tensor) -> None:
        rows = self._carve(target, source.numel())
        encode = kernels(source.device, "rows").encode
        if not encode(source, rows, self._format, self.columns, self._block_rows):
            raise EncodingOverflow(source.numel(), rows.columns.numel())

    def decode_into(self, source: Tensor, target: Tensor) -> None:
        rows = self._carve(source, target.numel())
        decode = kernels(target.device, "rows").decode
        decode(rows, target, self._format, self.columns, self._block_rows)

    @property
    def _format(self) -> ValueFormat:
        return FORMATS[self.values]

    @property
    def _block_rows(self) -> int:
        return _LARGEST[self.offset_type] // self.columns

    def _arrays(self, elements: int, nonzeros: int) -> list[Array]:
        """Return `Rows`' arrays, larger elements first."""
        rows = -(-elements // self.columns)
        arrays = [
            (torch.int32, max(1, -(-rows // self._block_rows))),
            (self.offset_type, rows),
            self._format.array(nonzeros),
            (self.column_type, nonzeros),
        ]
        return [arrays[i] for i in self._order]

    @property
    def _order(self) -> list[int]:
        sizes = [4, self.offset_type.itemsize, self._format.array(0)[0].itemsize, self.column_type.itemsize]
        return sorted(range(4), key=lambda i: -sizes[i])

    def _carve(self, data: Tensor, elements: int) -> Rows:
        views = carve(data, *self._arrays(elements, self.capacity(elements, data.numel())))
        return Rows._make(view for _, view in sorted(zip(self._order, views, strict=True)))


def csr(*, columns: int = 256, streams: int = 1) -> CompressedRows:
    """Return lossless CSR as in cuSPARSE: single-precision values, 32-bit columns and row offsets."""
    return CompressedRows("fp32", columns, torch.int32, torch.int32, streams)


_OFFSETS = {"uint8": torch.uint8, "uint16": torch.uint16}


def vp_encoding(
    *, values: str = "fp16", columns: int = 256, row_offsets: str = "uint16", streams: int = 1
) -> CompressedRows:
    """Return EPMC's VPEncoding: narrow values, 8-bit columns, 16-bit row offsets, or 8-bit ones for narrow matrices.

    Raises:
        MembenchError: there are more than 256 columns, or more than a row offset of this width can count.
    """
    if row_offsets not in _OFFSETS:
        raise MembenchError(f"there are no {row_offsets!r} row offsets; choose one of {', '.join(_OFFSETS)}")
    return CompressedRows(values, columns, torch.uint8, _OFFSETS[row_offsets], streams)
