"""Formats in which an encoding keeps its values.

FP32, FP16 (IEEE 754) and FP8 (OCP E4M3, which has no infinities) are torch's own. FP10 has the sign, the five exponent
bits and the first four mantissa bits of FP16; four of them are packed into five bytes. EPMC names FP16, FP10 and FP8 and
states no layouts (Section 4.3); these exponents are those of Gist (Jain et al., ISCA 2018).

All round to nearest, ties to even. What is beyond the largest number becomes infinity; in FP8 the largest number, as
torch converts.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from membench.codecs.arrays import Array, arrays_bytes, carve, scalar


class ValueFormat(ABC):
    """Keeps a growing row of numbers in memory of the caller's."""

    name: str
    relative_error: float
    """Of a number in the format's normal range."""

    @abstractmethod
    def arrays(self, count: int) -> Array:
        """Return the array that holds that many numbers."""

    @abstractmethod
    def staging_bytes(self, count: int) -> int:
        """Return what it takes to store or load that many at once."""

    @abstractmethod
    def store(self, values: Tensor, kept: Tensor, start: int, staging: Tensor) -> None:
        """Append float32 numbers; `start` of them are there."""

    @abstractmethod
    def load(self, kept: Tensor, start: int, out: Tensor, staging: Tensor) -> None:
        """Read as many numbers as `out` has, from position `start` on."""


@dataclass(frozen=True)
class NativeFormat(ValueFormat):
    """A format that is a type of torch's."""

    name: str
    dtype: torch.dtype
    relative_error: float

    def arrays(self, count: int) -> Array:
        return self.dtype, count

    def staging_bytes(self, count: int) -> int:
        return 0

    def store(self, values: Tensor, kept: Tensor, start: int, staging: Tensor) -> None:
        kept[start : start + len(values)].copy_(values)

    def load(self, kept: Tensor, start: int, out: Tensor, staging: Tensor) -> None:
        out.copy_(kept[start : start + len(out)])


_PACKED = 4
_PACKED_BYTES = 5
_DROPPED_BITS = 6  # of FP16's mantissa
_NAN = 0x7E00


@dataclass(frozen=True)
class Float10(ValueFormat):
    """Ten bits a number. A group holds the low eight bits of its four numbers, then their upper two in one byte."""

    name: str = "fp10"
    relative_error: float = 2.0**-5

    def arrays(self, count: int) -> Array:
        return torch.uint8, _PACKED_BYTES * _groups(count)

    def staging_bytes(self, count: int) -> int:
        return arrays_bytes(*_staging(count))

    def store(self, values: Tensor, kept: Tensor, start: int, staging: Tensor) -> None:
        count = len(values)
        codes, scratch, odd, half = carve(staging, *_staging(count))
        waiting = start % _PACKED  # of the last group, which is not full
        groups = _groups(waiting + count)
        packed = kept[_PACKED_BYTES * (start // _PACKED) :][: _PACKED_BYTES * groups].view(
            groups, _PACKED_BYTES
        )
        if waiting:
            _unpack(packed[:1], codes, scratch)
        _round(values, codes[waiting : waiting + count], scratch[:count], odd[:count], half[:count])
        codes[waiting + count : _PACKED * groups].zero_()
        _pack(codes, scratch, packed)

    def load(self, kept: Tensor, start: int, out: Tensor, staging: Tensor) -> None:
        count = len(out)
        codes, scratch, _, half = carve(staging, *_staging(count))
        skipped = start % _PACKED
        groups = _groups(skipped + count)
        packed = kept[_PACKED_BYTES * (start // _PACKED) :][: _PACKED_BYTES * groups].view(
            groups, _PACKED_BYTES
        )
        _unpack(packed, codes, scratch)
        codes.mul_(_number(1 << _DROPPED_BITS))
        half[:count].view(torch.int16).copy_(codes[skipped : skipped + count])
        out.copy_(half[:count])


def _groups(count: int) -> int:
    return -(-count // _PACKED)


def _staging(count: int) -> tuple[Array, ...]:
    room = _PACKED * (_groups(count) + 1)
    return (torch.int32, room), (torch.int32, room), (torch.int32, room), (torch.float16, room)


def _round(values: Tensor, codes: Tensor, signs: Tensor, odd: Tensor, half: Tensor) -> None:
    """Write the ten-bit codes of numbers."""
    half.copy_(values)
    codes.copy_(half.view(torch.int16))
    dropped = _number(_DROPPED_BITS)
    torch.bitwise_and(codes, _number(0x8000), out=signs).bitwise_right_shift_(dropped)
    codes.bitwise_and_(_number(0x7FFF)).clamp_(
        max=_NAN
    )  # else a NaN full of ones would round up into the sign
    torch.bitwise_right_shift(codes, dropped, out=odd).bitwise_and_(_number(1))  # the last bit that stays
    codes.add_(odd).add_(_number((1 << (_DROPPED_BITS - 1)) - 1)).bitwise_right_shift_(dropped).add_(signs)


def _pack(codes: Tensor, scratch: Tensor, packed: Tensor) -> None:
    count = _PACKED * len(packed)
    low, high = codes[:count].view(-1, _PACKED), scratch[:count].view(-1, _PACKED)
    torch.bitwise_right_shift(low, _number(8), out=high)
    packed[:, :_PACKED].copy_(low.bitwise_and_(_number(0xFF)))
    for position in range(1, _PACKED):
        high[:, 0].add_(high[:, position], alpha=4**position)
    packed[:, _PACKED].copy_(high[:, 0])


def _unpack(packed: Tensor, codes: Tensor, scratch: Tensor) -> None:
    count = _PACKED * len(packed)
    low, high = codes[:count].view(-1, _PACKED), scratch[:count].view(-1, _PACKED)
    low.copy_(packed[:, :_PACKED])
    high.copy_(packed[:, _PACKED:])
    for position in range(_PACKED):
        column = high[:, position]
        column.bitwise_right_shift_(_number(2 * position)).bitwise_and_(_number(3))
        low[:, position].add_(column, alpha=256)


def _number(number: int) -> Tensor:
    return scalar(number, torch.int32)


FORMATS: dict[str, ValueFormat] = {
    kept.name: kept
    for kept in (
        NativeFormat("fp32", torch.float32, 0.0),
        NativeFormat("fp16", torch.float16, 2.0**-11),
        Float10(),
        NativeFormat("fp8", torch.float8_e4m3fn, 2.0**-4),
    )
}
"""By the name that configurations use."""
