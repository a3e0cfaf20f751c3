"""The one-bit mask on a GPU, by Triton kernels. Tested in Triton's interpreter and on an H200."""

import triton
import triton.language as tl
from torch import Tensor

_BYTES = 512  # of a program


def encode(source: Tensor, target: Tensor) -> None:
    """Set the bit of each element that is not at most zero."""
    if source.numel():
        encode_kernel[(triton.cdiv(target.numel(), _BYTES),)](source, target, source.numel(), _BYTES)


def decode(source: Tensor, target: Tensor) -> None:
    """Write a one for each bit that is set, and a zero for the others."""
    if target.numel():
        decode_kernel[(triton.cdiv(source.numel(), _BYTES),)](source, target, target.numel(), _BYTES)


@triton.jit
def encode_kernel(elements, packed, count, step: tl.constexpr):
    """Set the bits of a block of bytes."""
    byte = tl.program_id(0).to(tl.int64) * step + tl.arange(0, step)
    place = tl.arange(0, 8)[None, :]
    at = 8 * byte[:, None] + place
    number = tl.load(elements + at, mask=at < count, other=0.0)
    is_set = (at < count) & ((number > 0) | (number != number))
    tl.store(packed + byte, tl.sum(is_set.to(tl.int32) << place, axis=1), mask=8 * byte < count)


@triton.jit
def decode_kernel(packed, elements, count, step: tl.constexpr):
    """Write a one or a zero for each bit of a block of bytes."""
    byte = tl.program_id(0).to(tl.int64) * step + tl.arange(0, step)[:, None]
    place = tl.arange(0, 8)[None, :]
    at = 8 * byte + place
    bits = tl.load(packed + byte, mask=8 * byte < count, other=0).to(tl.int32)
    tl.store(elements + at, ((bits >> place) & 1).to(tl.float32), mask=at < count)
