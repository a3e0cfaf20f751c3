"""Attention and encoder layers that plain PyTorch runs in one operator: the same bits from their parts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import membench
from membench.core.libraries.torch_internals import FUSED_ATTENTION, FUSED_ENCODER_LAYER, TorchDispatchMode, tree_map

PADDING = torch.tensor([[False] * 5, [False, False, True, True, True]])
ALL_PADDING = torch.tensor([[False] * 5, [True] * 5])
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


class Attention(nn.Module):
    """Attention of sequences to themselves."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)
        nn.init.normal_(self.layer.in_proj_bias)
        self.options = options
        self.eval()

    def forward(self, sequences: Tensor, padding: Tensor | None, mask: Tensor | None) -> Any:
        return self.layer(sequences, sequences, sequences, key_padding_mask=padding, attn_mask=mask, **self.options)


class Layer(nn.Module):
    """An encoder layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        self.eval()

    def forward(self, sequences: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor:
        return self.layer(sequences, mask, padding, is_causal=False)


def sequences(samples: int = 2) -> Tensor:
    return torch.randn(samples, 5, 8, generator=torch.Generator().manual_seed(1))


class Operators(TorchDispatchMode):
    """Keep which operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.add(func)
        return func(*args, **(kwargs or {}))


def bits(result: Tensor | None) -> Any:
    """Return what results are compared by: numbers, those that are none included, and strides."""
    return None if result is None else (result.view(torch.uint8).tolist(), result.stride())


def check(module: nn.Module, *batch: Tensor | None, fused: Any) -> None:
    """Check two steps against plain PyTorch's, and the fused operator that it calls, if any."""
    with torch.no_grad():
        with Operators() as operators:
            module(*batch)
        assert operators.found & {FUSED_ATTENTION, FUSED_ENCODER_LAYER} == ({fused} if fused else set())
        plain, wrapped = tree_map(bits, module(*batch)), membench.wrap(module)
        for _ in range(2):
            assert tree_map(bits, wrapped(*batch)) == plain


EVERY_MASK = pytest.mark.parametrize(
    ("padding", "mask"),
    [(padding, mask) for padding in (None, PADDING, ALL_PADDING) for mask in (None, CAUSAL)],
    ids=lambda value: "none" if value is None else "every" if value.all(-1).any() else "some",
)


@EVERY_MASK
@pytest.mark.parametrize(
    "options", [{"need_weights": False}, {"need_weights": True}, {"need_weights": True, "average_attn_weights": False}]
)
def test_attention_has_the_bits_of_the_fused_operator(
    padding: Tensor | None, mask: Tensor | None, options: dict[str, bool]
) -> None:
    check(Attention(**options), sequences(), padding, mask, fused=FUSED_ATTENTION)


@EVERY_MASK
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_has_the_bits_of_the_fused_operator(
    padding: Tensor | None, mask: Tensor | None, activation: str, *, norm_first: bool
) -> None:
    module = Layer(norm_first=norm_first, activation=activation)
    check(module, sequences(), padding, mask, fused=FUSED_ENCODER_LAYER)


EACH = pytest.mark.parametrize(
    ("module", "fused"), [(Attention, FUSED_ATTENTION), (Layer, FUSED_ENCODER_LAYER)], ids=["attention", "layer"]
)


@EACH
def test_frozen_weights_and_other_layouts_have_the_same_bits(module: Callable[[], nn.Module], fused: Any) -> None:
    layer = module().requires_grad_(False)
    check(layer, sequences(), None, None, fused=fused)
    check(layer, sequences().transpose(0, 1).contiguous().transpose(0, 1), None, None, fused=fused)
    check(layer, sequences()[:1, :1], None, None, fused=fused)


@EACH
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_have_the_same_bits(module: Callable[[], nn.Module], fused: Any, dtype: torch.dtype) -> None:
    check(module().to(dtype), sequences().to(dtype), PADDING, CAUSAL, fused=fused)


@EACH
def test_autocast_casts_what_it_casts_in_the_fused_operator(module: Callable[[], nn.Module], fused: Any) -> None:
    for masks in ((None, None), (PADDING, CAUSAL)):
        with torch.autocast("cpu", torch.bfloat16):
            check(module(), sequences(), *masks, fused=fused)


class Head(nn.Module):
    """A head that is trained on an encoder that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(Layer().layer, Layer(norm_first=True).layer).eval().requires_grad_(False)
        self.head = nn.Linear(8, 2)

    def forward(self, sequences: Tensor) -> Tensor:
        return self.head(self.encoder(sequences).mean(1))


@pytest.mark.parametrize("strategy", ["eager", "auto", "memonger"])
def test_a_frozen_encoder_is_fused_in_training(strategy: str) -> None:
    module = Head()
    with Operators() as operators:
        plain = module(sequences())
    assert FUSED_ENCODER_LAYER in operators.found
    weights = list(module.head.parameters())
    expected = torch.autograd.grad(plain.square().sum(), weights)
    output = membench.wrap(module, strategy=strategy)(sequences())
    gradients = torch.autograd.grad(output.square().sum(), weights)
    assert output.equal(plain) and all(map(torch.equal, gradients, expected))


def test_a_layer_with_hooks_is_not_fused() -> None:
    module = Layer()
    module.layer.linear1.register_forward_hook(lambda layer, args, output: output + 1)
    check(module, sequences(), None, None, fused=FUSED_ATTENTION)


def test_no_layer_is_fused_where_a_function_mode_is_active() -> None:
    class Nothing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    for module in Attention(), Layer():
        with Nothing():
            check(module, sequences(), None, None, fused=None)
