"""Tensors for codec tests: any shape, any density, any bits."""

import torch
from hypothesis import strategies as st
from torch import Tensor

SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 1e-45, -1e-40, 3.4e38, 1.0, -2.5)


@st.composite
def activations(draw: st.DrawFn, *, special: bool = True) -> Tensor:
    """A float32 tensor of up to four dimensions, contiguous or not, perhaps with rows all or never zero."""
    shape = draw(st.lists(st.integers(0, 24), min_size=0, max_size=4))
    density = draw(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    tensor = torch.randn(shape, generator=generator)
    tensor[torch.rand(shape, generator=generator) >= density] = 0.0
    flat = tensor.view(-1)
    if flat.numel() and special:
        for value in draw(st.lists(st.sampled_from(SPECIAL), max_size=4)):
            flat[draw(st.integers(0, flat.numel() - 1))] = value
    if flat.numel() > 8 and draw(st.booleans()):
        third = flat.numel() // 3
        flat[:third], flat[third : 2 * third] = 0.0, 1.5
    if draw(st.booleans()):
        tensor = torch.stack([tensor, tensor + 1], -1)[..., 0]
    if tensor.dim() > 1 and draw(st.booleans()):
        tensor = tensor.transpose(0, -1)
    return tensor


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Compare bits, so that NaN equals NaN and 0.0 is not -0.0."""
    return first.shape == second.shape and torch.equal(
        first.contiguous().view(torch.int32), second.contiguous().view(torch.int32)
    )


def nonzeros(tensor: Tensor) -> int:
    """Count the elements whose bits are not all zero."""
    return int(torch.count_nonzero(tensor.contiguous().view(torch.int32)))
