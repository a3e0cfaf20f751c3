"""Random regions of `torch.utils.checkpoint`: bits of plain PyTorch, compiled and wrapped."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import membench
from tests.helpers.networks.random_regions import WIDTH, Repeated, random_module
from tests.helpers.steps.variants import EACH_COMBINED, VARIANTS

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),
    pytest.mark.filterwarnings("ignore:.*lone|.*dropout"),
]
SEEDS = 12
"""Modules under the program's own recomputation; under each other strategy there is one."""


def _after(module: nn.Module, before: dict[str, Tensor], step: Callable[[], Tensor]) -> list[Tensor | None]:
    module.load_state_dict(before)
    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = step().detach().clone()
    gradients = [weight.grad for weight in module.parameters()]
    return [loss, *gradients, *(each.clone() for each in module.buffers()), torch.rand(1)]


def _check(module: nn.Module, variant: str) -> None:
    inputs, targets = torch.randn(5, WIDTH), torch.randint(4, (5,))
    before = {name: value.clone() for name, value in module.state_dict().items()}

    def plain(called: nn.Module = module) -> Tensor:
        loss = functional.cross_entropy(called(inputs), targets)
        loss.backward()
        return loss

    try:
        expected = _after(module, before, plain)
    except RuntimeError:  # plain PyTorch refuses it
        return
    module.load_state_dict(before)
    wrapped = membench.wrap(module, strategy=VARIANTS[variant], example=(inputs,))
    step = membench.compile(module, functional.cross_entropy, (inputs, targets), strategy=VARIANTS[variant])
    for run in (lambda: plain(wrapped), lambda: step(inputs, targets)):
        found = _after(module, before, run)
        for one, other in zip(expected, found, strict=True):
            assert (one is None) == (other is None)
            assert one is None or other is None or step.schedule.rounding or torch.equal(one, other)
    wrapped.wrapped_calls.close()
    step.close()


def _random(seed: int) -> nn.Module:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    ends = [nn.Linear(WIDTH, WIDTH), random_module(rng), nn.Linear(WIDTH, 4)]
    return nn.Sequential(*ends[rng.randint(0, 1) : rng.randint(2, 3)])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_as_the_program_runs_them_random_regions_are_exact(seed: int) -> None:
    _check(_random(seed), "pytorch")


@pytest.mark.parametrize("variant", EACH_COMBINED)
def test_random_regions_are_exact_under_every_strategy(variant: str) -> None:
    _check(_random(100 + list(VARIANTS).index(variant)), variant)


@pytest.mark.parametrize("last", [(), ("linear",), ("relu", "linear"), ("linear", "dropout"), ("frozen",)])
def test_a_region_may_end_behind_a_dropout(last: tuple[str, ...]) -> None:
    layers = {
        "linear": nn.Linear(WIDTH, WIDTH),
        "relu": nn.ReLU(),
        "dropout": nn.Dropout(0.3),
        "frozen": nn.Linear(WIDTH, WIDTH).requires_grad_(False),
    }
    chain = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.3), *(layers[name] for name in last))
    _check(nn.Sequential(Repeated(chain, use_reentrant=False), nn.Linear(WIDTH, 4)), "pytorch")


def test_a_reentrant_region_may_return_its_input() -> None:
    inner = Repeated(nn.Identity(), use_reentrant=True)
    _check(nn.Sequential(nn.Linear(WIDTH, WIDTH), Repeated(inner, use_reentrant=True)), "pytorch")
