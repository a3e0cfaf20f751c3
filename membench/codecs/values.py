"""Number formats of encoded values.

FP32, FP16 (IEEE 754) and FP8 (OCP E4M3, which has no infinities) are torch's own. FP10 has the sign, the five exponent
bits and the first four mantissa bits of FP16, to which a number is rounded first; four of them are packed into five
bytes. EPMC names FP16, FP10 and FP8 and states no layouts (Section 4.3); these exponents are those of Gist (Jain et
al., ISCA 2018).

All round to nearest, ties to even. Numbers beyond the largest one become infinity; in FP8 the largest number, as in
torch's conversion.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from membench.codecs.arrays import Array

PACKED_BITS = 10
"""The only width without a type: four numbers are their low eight bits each, then a byte of the upper two."""
EXACT_BITS = 32


class ValueFormat(NamedTuple):
    """A conversion of numbers to codes, as plain integers for loops and kernels.

    Attributes:
        bits: number of bits of a code, the sign first.
        mantissa_bits, exponent_bias: format of the numbers to which it is rounded.
        largest: code of numbers beyond the largest one, without sign.
        nan: code of NaN.
        dropped_bits: bits of the mantissa that a second rounding drops.
    """

    bits: int
    mantissa_bits: int
    exponent_bias: int
    largest: int
    nan: int
    dropped_bits: int = 0

    @property
    def relative_error(self) -> float:
        """The largest one for a number in the format's normal range."""
        if self.bits == EXACT_BITS:
            return 0.0
        return float(2.0 ** (self.dropped_bits - self.mantissa_bits - 1))

    def array(self, count: int) -> Array:
        """Return the array for that many numbers."""
        if self.bits == PACKED_BITS:
            return torch.uint8, 5 * -(-count // 4)
        return {32: torch.uint32, 16: torch.uint16, 8: torch.uint8}[self.bits], count


FORMATS = {
    "fp32": ValueFormat(EXACT_BITS, 23, 127, 0, 0),
    "fp16": ValueFormat(16, 10, 15, 0x7C00, 0x7E00),
    "fp10": ValueFormat(PACKED_BITS, 10, 15, 0x7C00, 0x7E00, dropped_bits=6),
    "fp8": ValueFormat(8, 3, 7, 0x7E, 0x7F),
}
"""By name in configurations."""


@cache
def numbers(bits: int) -> Tensor:
    """Return the float32 number of each code with that many bits, as torch converts it; empty for 32 bits."""
    codes = torch.arange(2**bits if bits < EXACT_BITS else 0)
    if bits == FORMATS["fp8"].bits:
        return codes.to(torch.uint8).view(torch.float8_e4m3fn).float()
    dropped_bits = max(0, FORMATS["fp16"].bits - bits)
    return (codes << dropped_bits).to(torch.uint16).view(torch.float16).float()
