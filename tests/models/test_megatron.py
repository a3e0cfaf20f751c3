"""Megatron's GPT-2 and LoHan's: sizes, recomputation, and Adam on single-precision copies."""

import pytest
import torch
from torch import nn

from membench.models.lohan import LoHan
from membench.models.megatron import MasterAdam, Megatron, TokenLoss

SMALL = {"layers": 2, "width": 64, "heads": 4, "vocabulary": 128}


def weights_of(network: type[nn.Module], layers: int, width: int, heads: int) -> int:
    with torch.device("meta"):
        made = network(layers=layers, width=width, heads=heads)
    return sum(weight.numel() for weight in made.parameters())


@pytest.mark.parametrize(("layers", "width", "billion"), [(20, 2048, 1), (50, 4096, 10), (65, 4096, 13)])
def test_hidden_sizes_and_layers_of_table_3_are_the_sizes_that_it_names(
    layers: int, width: int, billion: float
) -> None:
    assert weights_of(Megatron, layers, width, 16) == pytest.approx(billion * 1e9, rel=0.12)


def test_lohans_13_billion_have_13_billion_weights() -> None:
    assert weights_of(LoHan, 40, 5120, 40) == pytest.approx(13e9, rel=0.02)


@pytest.mark.parametrize("network", [Megatron, LoHan])
def test_recomputation_changes_nothing(network: type[nn.Module]) -> None:
    found = []
    for is_checkpointed in (False, True):
        torch.manual_seed(0)
        made = network(**SMALL, is_checkpointed=is_checkpointed)
        made(torch.randint(128, (2, 32))).float().mean().backward()
        found.append([weight.grad for weight in made.parameters()])
    for gradient, again in zip(*found, strict=True):
        assert torch.equal(gradient, again)


def test_the_loss_is_cross_entropy_and_its_softmax_the_gradient() -> None:
    logits = torch.randn(2, 5, 7, requires_grad=True)
    targets = torch.randint(7, (2, 5))
    wanted = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    [gradient] = torch.autograd.grad(wanted, logits)
    loss = TokenLoss()(logits, targets)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], gradient)


def test_an_update_too_small_for_half_precision_adds_up_in_the_copy() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer = MasterAdam([weight], lr=1e-4)
    for _ in range(10):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    torch.testing.assert_close(weight.data, torch.full_like(weight.data, 1 - 1e-3), rtol=0, atol=1e-3)
    assert weight[0] < 1
