"""Products in NF4: bitsandbytes' numbers, and what they keep for the backward pass."""

import pytest
import torch
from torch.nn import functional

from experiments.validation.programs.nf4 import Nf4Linear

bitsandbytes = pytest.importorskip("bitsandbytes")


def quantized(double: bool) -> tuple[Nf4Linear, torch.Tensor]:
    """Return a product with a weight that bitsandbytes quantized, and that weight."""
    weight = torch.randn(96, 128, dtype=torch.float16)
    packed, state = bitsandbytes.functional.quantize_4bit(
        weight, blocksize=64, compress_statistics=double, quant_type="nf4"
    )
    layer = Nf4Linear(128, 96, bias=False, double=double)
    layer.packed.data = packed
    layer.scales = state.absmax
    if double:
        layer.scales_of_scales, layer.code, layer.offset = (state.state2.absmax, state.state2.code, state.offset)
    return layer, bitsandbytes.functional.dequantize_4bit(packed, state).float()


@pytest.mark.parametrize("double", [False, True])
def test_the_product_and_its_gradient_are_those_of_the_dequantized_weight(double: bool) -> None:
    layer, weight = quantized(double)
    features = torch.randn(2, 5, 128, requires_grad=True)
    result = layer(features)
    torch.testing.assert_close(result, functional.linear(features, weight), rtol=1e-3, atol=1e-3)
    (gradient,) = torch.autograd.grad(result.sum(), features)
    torch.testing.assert_close(gradient, torch.ones(2, 5, 96) @ weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("double", "bits"), [(False, 4.5), (True, 4 + 8 / 64 + 32 / 64 / 256)])
def test_a_weight_has_four_bits_and_its_scales(double: bool, bits: float) -> None:
    with torch.device("meta"):
        layer = Nf4Linear(4096, 4096, bias=False, double=double)
    stored = layer.packed.nbytes + sum(
        tensor.nbytes for name, tensor in layer.named_buffers() if name not in ("code", "offset")
    )
    assert stored == bits / 8 * 4096 * 4096


def test_the_input_is_kept_only_where_it_has_a_gradient() -> None:
    layer, _ = quantized(double=False)
    result = layer(torch.randn(2, 128, requires_grad=True))
    assert result.grad_fn.kept.shape == (2, 128)
    assert layer(torch.randn(2, 128)).grad_fn is None
