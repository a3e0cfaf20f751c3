"""Derivatives of a wrapped module's gradients: the same as the module's, or refused in a sentence."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import membench
from membench.core.errors import MembenchError
from tests.helpers.steps.wrapping import check_loop, pair

STRATEGIES = ("eager", "layrub_hybrid", "memonger")


def critic() -> nn.Module:
    """A network that is not linear in its input, so that the gradients' derivatives are not zero."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Softplus(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 1)
    )


def images(seed: int = 0) -> Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def slope_of(judges: nn.Module, between: Tensor) -> Tensor:
    [slope] = torch.autograd.grad(judges(between).sum(), [between], create_graph=True)
    return slope


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_penalty_on_a_gradient_is_exact_with_dropout_and_batch_norm(strategy: str) -> None:
    def loop(judges: nn.Module) -> Any:
        loss = judges(images(1)).mean() - judges(images(2)).mean()
        (loss + slope_of(judges, images().requires_grad_()).square().mean()).backward()
        return loss.detach(), torch.get_rng_state()

    check_loop(loop, critic, strategy=strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_call_has_both_its_gradient_and_a_penalty_on_it(strategy: str) -> None:
    """R1: the loss and the penalty are of one call; its gradients are added in another order than in plain PyTorch."""
    found = []
    for judges in pair(lambda: critic().double(), strategy=strategy):
        real = images().double().requires_grad_()
        torch.manual_seed(1)
        scores = judges(real)
        [slope] = torch.autograd.grad(scores.sum(), [real], create_graph=True)
        (nn.functional.softplus(-scores).mean() + slope.square().mean()).backward()
        found.append([weight.grad for weight in judges.parameters()])
    for expected, gradient in zip(*found, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_a_product_with_the_hessian_needs_no_gradient_of_inputs() -> None:
    """The loss is of the call whose gradients have derivatives, added in another order than in plain PyTorch."""
    found = []
    for judges in pair(lambda: critic().double()):
        weights = list(judges.parameters())
        torch.manual_seed(1)
        gradients = torch.autograd.grad(judges(images().double()).square().mean(), weights, create_graph=True)
        found.append(torch.autograd.grad([gradient.sum() for gradient in gradients], weights))
    for expected, product in zip(*found, strict=True):
        torch.testing.assert_close(product, expected, rtol=0, atol=1e-12)


def test_a_gradient_through_autocast_has_derivatives_as_in_plain_pytorch() -> None:
    def loop(judges: nn.Module) -> Any:
        between = images().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = judges(between)
        [slope] = torch.autograd.grad(scores.float().sum(), [between], create_graph=True)
        slope.square().mean().backward()

    check_loop(loop, critic)


def test_that_the_module_runs_once_more_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    judges = membench.wrap(critic())
    with caplog.at_level(logging.WARNING, "membench"):
        for _ in range(2):
            slope_of(judges, images().requires_grad_())
    [record] = caplog.records
    assert "Sequential runs once more in plain PyTorch, without a strategy" in record.getMessage()


def test_a_module_whose_output_depends_on_buffers_that_each_run_changes_is_refused() -> None:
    judges = membench.wrap(nn.Sequential(spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1)))
    with pytest.raises(MembenchError, match="its buffers change in each run and its output with them"):
        slope_of(judges, torch.randn(2, 3, requires_grad=True))


class Shifted(nn.Linear):
    """The shift is no tensor that the backward pass reads."""

    def forward(self, inputs: Tensor, shift: Tensor | None = None) -> Tensor:
        assert shift is not None
        return nn.functional.softplus(super().forward(inputs) + shift)


def test_an_argument_that_was_overwritten_or_dropped_is_refused() -> None:
    judges = membench.wrap(Shifted(3, 1))
    between, shift = torch.randn(2, 3, requires_grad=True), torch.randn(1)
    scores = judges(between, shift)
    shift.zero_()
    with pytest.raises(MembenchError, match="an argument, weight or buffer has been overwritten"):
        torch.autograd.grad(scores.sum(), [between], create_graph=True)
    scores = judges(between, torch.randn(1))
    with pytest.raises(MembenchError, match="an argument of that call is gone; keep a reference"):
        torch.autograd.grad(scores.sum(), [between], create_graph=True)
    scores.sum().backward()  # an ordinary one needs neither
    assert between.grad is not None
