"""Megatron's GPT-2 and LoHan's: sizes, recomputation, and Adam on single-precision copies."""

import pytest
import torch
from torch import nn

import membench
from experiments.validation.programs.lohan import LoHan
from membench.core.step.optimizer import described_update
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


def predicted_with(fused: bool | None) -> membench.Prediction:
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8))).bfloat16()
        inputs = torch.empty(2, 512, dtype=torch.bfloat16)
    described = described_update(
        "master_adam", "membench.models.megatron.MasterAdam", **({} if fused is None else {"fused": fused})
    )
    return membench.predict(
        module, lambda output: output.float().sum(), (inputs, ()), device="h100", optimizer=described
    )


def test_one_gradient_at_a_time_has_single_precision_where_the_update_is_fused() -> None:
    by_default, unfused, fused = map(predicted_with, (None, False, True))
    assert by_default.allocated_bytes == unfused.allocated_bytes
    assert unfused.allocated_bytes - fused.allocated_bytes >= 6 * 4 * 512**2  # of eight, one or two are left
    assert fused.parts_bytes["optimizer state"] == unfused.parts_bytes["optimizer state"]


def test_a_fused_update_has_the_bits_of_the_other() -> None:
    updated = []
    for fused in (False, True):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(5, 3).half()) for _ in range(3)]
        optimizer = MasterAdam(weights, fused=fused)
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.randn(5, 3).half()
            optimizer.step()
        updated.append(weights)
    for one, other in zip(*updated, strict=True):
        assert torch.equal(one, other)
