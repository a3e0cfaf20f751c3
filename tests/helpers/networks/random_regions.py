"""Random modules with regions of `torch.utils.checkpoint`: both kinds, nested, with dropout anywhere."""

import random
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

WIDTH = 6


class Plus(nn.Module):
    """Adds what a module returns to its inputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.inner(inputs)


class Repeated(nn.Module):
    """A module that runs as a region."""

    def __init__(self, inner: nn.Module, stops_early: bool = True, **options: Any) -> None:
        super().__init__()
        self.inner, self.options, self.stops_early = inner, options, stops_early

    def forward(self, inputs: Tensor) -> Tensor:
        with set_checkpoint_early_stop(self.stops_early):
            return checkpoint(self.inner, inputs, **self.options)


class Times(nn.Module):
    """A product with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight


class Softmax(nn.Module):
    """A function that autograd saves the result of."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.softmax(1)


LAYERS = {
    "linear": partial(nn.Linear, WIDTH, WIDTH),
    "without bias": partial(nn.Linear, WIDTH, WIDTH, bias=False),
    "frozen": lambda: nn.Linear(WIDTH, WIDTH).requires_grad_(False),
    "relu": nn.ReLU,
    "relu in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "gelu": nn.GELU,
    "dropout": partial(nn.Dropout, 0.3),
    "dropout in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3, inplace=True)),
    "dropout of all": partial(nn.Dropout, 1.0),
    "alpha dropout": partial(nn.AlphaDropout, 0.2),
    "layer norm": partial(nn.LayerNorm, WIDTH),
    "batch norm": partial(nn.BatchNorm1d, WIDTH),
    "times": Times,
    "softmax": Softmax,
    "as it is": nn.Identity,
}


def random_module(rng: random.Random, depth: int = 3, *, in_region: bool = False) -> nn.Module:
    """Return a chain of layers, residual chains and regions."""
    parts: list[nn.Module] = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        if depth and kind < 0.4:
            parts.append(_region(rng, depth, in_region=in_region))
        elif depth and kind < 0.5:
            parts.append(Plus(random_module(rng, depth - 1, in_region=in_region)))
        else:
            parts.append(LAYERS[rng.choice(sorted(LAYERS))]())
    return nn.Sequential(*parts)


def _region(rng: random.Random, depth: int, *, in_region: bool) -> nn.Module:
    inner = random_module(rng, depth - 1, in_region=True)
    reentrant = rng.random() < 0.3
    keeps = rng.random() < 0.8
    stops_early = reentrant or rng.random() < 0.8
    return Repeated(inner, stops_early, use_reentrant=reentrant, preserve_rng_state=keeps)
