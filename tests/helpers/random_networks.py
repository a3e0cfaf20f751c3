"""Random networks: branches, concatenations, in-place operators, shared weights, dropout."""

from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from membench.core.workload import Workload
from tests.helpers.networks import Reference, reference_of

CHANNELS = 4


class RandomNetwork(nn.Module):
    """A network given as a list of operations, each with the numbers of two earlier activations that it may read."""

    def __init__(self, plan: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.plan = plan
        self.shared = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.layers = nn.ModuleList(self._layer(operation) for operation, _, _ in plan)
        self.merge = nn.Conv2d(2 * CHANNELS, CHANNELS, 1)
        self.head = nn.Linear(CHANNELS, 3)

    def _layer(self, operation: str) -> nn.Module:
        return {
            "convolution": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
            "grouped": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=2, bias=False),
            "normalized": lambda: nn.Sequential(nn.BatchNorm2d(CHANNELS), nn.ReLU(inplace=True)),
            "relu": nn.ReLU,
            "gelu": nn.GELU,
            "pool": lambda: nn.MaxPool2d(3, stride=1, padding=1),
            "average": lambda: nn.AvgPool2d(3, stride=1, padding=1),
            "dropout": lambda: nn.Dropout(0.3),
        }.get(operation, nn.Identity)()

    def forward(self, images: Tensor) -> Tensor:
        activations = [self.shared(images)]
        for layer, (operation, first, second) in zip(self.layers, self.plan, strict=True):
            one, other = activations[first % len(activations)], activations[second % len(activations)]
            activations.append(self._apply(layer, operation, one, other))
        return self.head(sum(activations[-2:], activations[-1]).mean((2, 3)))

    def _apply(self, layer: nn.Module, operation: str, one: Tensor, other: Tensor) -> Tensor:
        match operation:
            case "add":
                return one + other
            case "add in place":
                return (one * 0.5).mul_(2.0).add_(other)
            case "concatenate":
                return self.merge(torch.cat([one, other], 1))
            case "shared":
                return self.shared(one)
            case "transposed":
                return one.transpose(2, 3)
            case "slices":
                return torch.cat([one[:, :2], other[:, 2:]], 1)
            case _:
                return layer(one)


OPERATIONS = [
    "convolution", "grouped", "normalized", "relu", "gelu", "pool", "average", "dropout", "add", "add in place",
    "concatenate", "shared", "transposed", "slices",
]  # fmt: skip
PLANS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=9
)


def random_workload(layers: list[tuple[str, int, int]]) -> Workload:
    arguments: Any = (torch.randn(2, CHANNELS, 6, 6),), (torch.randint(3, (2,)),)
    return Workload("random", RandomNetwork(layers), nn.functional.cross_entropy, *arguments)


def random_reference(layers: list[tuple[str, int, int]], seed: int) -> Reference:
    """Return a captured network, cached: every strategy is tested on the same examples."""
    return _random_reference(tuple(layers), seed)


@cache
def _random_reference(layers: tuple[tuple[str, int, int], ...], seed: int) -> Reference:
    torch.manual_seed(seed)
    return reference_of(random_workload(list(layers)))
