"""Loops that people write, around a module and around the wrapped one: they end with the same bits."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

import membench
from tests.helpers.steps.wrapping import check_same, state_of

STRATEGIES = ("eager", "layrub_hybrid", "memonger")


def generator_of_images() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh())


def discriminator() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(16, 1))


def wrapped(module: nn.Module, strategy: str) -> nn.Module:
    return membench.wrap(module, strategy=strategy) if strategy else module


def play(strategy: str) -> Any:
    """Train a generator against a discriminator; its images reach the generator through the other network."""
    torch.manual_seed(0)
    makes, judges = (wrapped(module, strategy) for module in (generator_of_images(), discriminator()))
    optimizers = [torch.optim.Adam(module.parameters(), 0.01) for module in (makes, judges)]
    losses = []
    for _ in range(3):
        images, noise = torch.randn(6, 12), torch.randn(6, 4)
        made = makes(noise)
        of_judge = functional.softplus(-judges(images)).mean() + functional.softplus(judges(made.detach())).mean()
        optimizers[1].zero_grad()
        of_judge.backward()
        optimizers[1].step()
        of_maker = functional.softplus(-judges(made)).mean()
        optimizers[0].zero_grad()
        of_maker.backward()
        optimizers[0].step()
        losses += [of_judge.detach(), of_maker.detach()]
    return losses, state_of(makes), state_of(judges)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_networks_against_each_other(strategy: str) -> None:
    check_same(play(strategy), play(""))


def penalize(strategy: str) -> Any:
    """Wasserstein loss with a gradient penalty."""
    torch.manual_seed(0)
    module = discriminator()
    judges, optimizer = wrapped(module, strategy), torch.optim.Adam(module.parameters(), 0.01)
    for _ in range(2):
        images, made = torch.randn(6, 12), torch.randn(6, 12)
        loss = judges(made).mean() - judges(images).mean()
        between = (images + made).div(2).requires_grad_()
        [slope] = torch.autograd.grad(judges(between).sum(), [between], create_graph=True)
        optimizer.zero_grad()
        (loss + 10 * (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
    return state_of(judges)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradient_penalty(strategy: str) -> None:
    check_same(penalize(strategy), penalize(""))


class Margin(nn.Module):
    """A loss with weights of its own: an angle is added to that between an embedding and its class (ArcFace)."""

    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(5, 8))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        cosine = functional.linear(functional.normalize(embeddings), functional.normalize(self.centers))
        angle = cosine.clamp(-0.99, 0.99).acos() + 0.3 * functional.one_hot(labels, 5)
        return functional.cross_entropy(16 * angle.cos(), labels)


def embed(strategy: str) -> Any:
    torch.manual_seed(0)
    network, margin = (nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)), Margin())
    embeds = wrapped(network, strategy)
    optimizer = torch.optim.SGD([*embeds.parameters(), *margin.parameters()], 0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        embeddings = embeds(torch.randn(10, 6))
        margin(embeddings, torch.randint(5, (10,))).backward()
        optimizer.step()
    return embeddings.detach(), state_of(embeds), state_of(margin)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loss_with_weights_of_its_own(strategy: str) -> None:
    check_same(embed(strategy), embed(""))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_network_of_transformers_returns_its_own_class_for_sequences_of_two_lengths(strategy: str) -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=20, n_positions=8, use_cache=False)
    torch.manual_seed(0)
    plain = GPT2LMHeadModel(config)
    ours = membench.wrap(copy.deepcopy(plain), strategy=strategy)
    found = []
    for module in (plain, ours):
        torch.manual_seed(1)
        optimizer, losses = torch.optim.AdamW(module.parameters(), 0.01), []
        for length in (8, 5, 8):
            tokens = torch.randint(20, (3, length))
            output = module(input_ids=tokens, labels=tokens)
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
            losses += [output.loss.detach(), output["logits"].detach()]
        found.append((type(output).__name__, losses, state_of(module)))
    assert len(ours.wrapped_calls.steps) == 2
    check_same(*found)
