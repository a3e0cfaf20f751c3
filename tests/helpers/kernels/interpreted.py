"""Triton's kernels against the CPU's loops, bit for bit; run with TRITON_INTERPRET=1, set before Triton is imported."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from membench.codecs import cpu_mask, cpu_rows, cuda_mask, cuda_rows
from membench.codecs.mask import BitMask
from membench.codecs.rows import CompressedRows, csr, vp_encoding
from membench.codecs.values import FORMATS
from membench.core.graph.codec import EncodingOverflow

ROOM = 3  # more non-zeros than there are
UNWRITTEN = 7

CODECS = (
    csr(),
    *(vp_encoding(values=values) for values in FORMATS),
    vp_encoding(values="fp10", columns=15, row_offsets="uint8"),
)


def activations() -> Iterator[Tensor]:
    """Activations of no row, one, and more than a program or a block takes; full and empty; and all kinds of bits."""
    generator = torch.Generator().manual_seed(0)
    for elements, density in ((0, 1.0), (1, 1.0), (257, 0.0), (257, 1.0), (5000, 0.4)):
        tensor = torch.randn(elements, generator=generator)
        tensor[torch.rand(elements, generator=generator) >= density] = 0.0
        yield tensor
    yield torch.randint(-(2**31), 2**31, (1000,), generator=generator).int().view(torch.float32)
    yield torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 65520.0, 464.0, 2.0**-9])


def rows_agree(codec: CompressedRows, tensor: Tensor) -> None:
    elements = tensor.numel()
    nonzeros = int(torch.count_nonzero(tensor.view(torch.int32)))
    encoded, decoded = [], []
    for kernels in (cpu_rows, cuda_rows):
        data = torch.full((codec.size_bytes(elements, nonzeros + ROOM),), UNWRITTEN, dtype=torch.uint8)
        target = torch.full((elements,), float(UNWRITTEN))
        with patch("membench.codecs.rows.kernels", return_value=kernels):
            codec.encode_into(tensor, data)
            encoded.append(data)
            codec.decode_into(encoded[0], target)
            decoded.append(target.view(torch.int32))
            if nonzeros:
                with pytest.raises(EncodingOverflow):
                    codec.encode_into(tensor, torch.empty(codec.size_bytes(elements, nonzeros - 1), dtype=torch.uint8))
    assert torch.equal(*encoded), (codec, elements)
    assert torch.equal(*decoded), (codec, elements)


def masks_agree(tensor: Tensor) -> None:
    masks = [torch.empty(BitMask().size_bytes(tensor.numel(), 0), dtype=torch.uint8) for _ in range(2)]
    decoded = [torch.empty_like(tensor) for _ in range(2)]
    for kernels, mask, target in zip((cpu_mask, cuda_mask), masks, decoded, strict=True):
        kernels.encode(tensor, mask)
        kernels.decode(mask, target)
    assert torch.equal(*masks)
    assert torch.equal(*decoded)


if __name__ == "__main__":
    for tensor in activations():
        masks_agree(tensor)
        for codec in CODECS:
            rows_agree(codec, tensor)
    print("agreed")
