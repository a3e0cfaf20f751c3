"""Encoders that plain PyTorch runs on nested tensors: refused where results would differ, captured elsewhere."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.core.errors import UnsupportedModel

PADDING = torch.tensor([[False] * 4, [False, False, True, True]])
CAUSAL = torch.ones(4, 4, dtype=torch.bool).triu(1)


class Padded(nn.Module):
    """An encoder, in evaluation, of sequences whose padding is told."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, **options)
        self.eval()

    def forward(self, sequences: Tensor, padding: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.encoder(sequences, mask, padding, is_causal=False)


def sequences() -> Tensor:
    return torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("is_frozen", [False, True])
def test_an_encoder_that_leaves_padding_out_is_refused(*, is_frozen: bool) -> None:
    module = Padded().requires_grad_(not is_frozen)
    with torch.set_grad_enabled(is_frozen):
        assert not module(sequences(), PADDING)[PADDING].any()
        with pytest.raises(UnsupportedModel, match=r"'encoder'.*enable_nested_tensor=False"):
            membench.wrap(module)(sequences(), PADDING)


def test_an_encoder_that_autograd_needs_is_captured() -> None:
    module = Padded()
    assert membench.wrap(module)(sequences(), PADDING).equal(module(sequences(), PADDING))


def test_an_encoder_that_keeps_padding_is_captured() -> None:
    for module, masks in ((Padded(enable_nested_tensor=False), (PADDING,)), (Padded(), (PADDING, CAUSAL))):
        with torch.no_grad():
            plain = module(sequences(), *masks)
            assert plain[PADDING].any()
            assert membench.wrap(module)(sequences(), *masks).equal(plain)


def test_an_encoder_is_captured_without_the_fused_layers() -> None:
    module = Padded()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            assert membench.wrap(module)(sequences(), PADDING).equal(module(sequences(), PADDING))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
