"""Random networks: branches, in-place and random operators, shared weights, attention, recurrence, masks."""

import random
from collections.abc import Callable
from functools import cache

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from membench.conformance.results import Reference
from membench.core.step.workload import Workload
from tests.helpers.devices import DEVICE
from tests.helpers.networks.contract import as_run

CHANNELS = 4
SIZE = 6


Layers = list[tuple[str, int, int]]
"""Operations, each with the numbers of two earlier activations that it may read."""


class RandomNetwork(nn.Module):
    """A network given as a list of operations, each with the numbers of two earlier activations that it may read."""

    def __init__(self, plan: Layers) -> None:
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
            "depthwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
            "dilated": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=2, dilation=2),
            "transposed convolution": lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, padding=1),
            "frozen": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1).requires_grad_(False),
            "strided": lambda: nn.Sequential(
                nn.Conv2d(CHANNELS, CHANNELS, 2, stride=2), nn.SiLU(inplace=True), nn.Upsample(scale_factor=2)
            ),
            "layer norm": lambda: nn.LayerNorm((CHANNELS, SIZE, SIZE)),
            "group norm": lambda: nn.GroupNorm(2, CHANNELS),
            "instance norm": lambda: nn.InstanceNorm2d(CHANNELS, affine=True, track_running_stats=True),
            "dropout of maps": lambda: nn.Dropout2d(0.3),
            "leaky": lambda: nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), nn.LeakyReLU(0.1, inplace=True)),
            "attention": lambda: nn.MultiheadAttention(CHANNELS, 2, dropout=0.1, batch_first=True),
            "attention without dropout": lambda: nn.MultiheadAttention(CHANNELS, 2, batch_first=True),
            "recurrent": lambda: nn.LSTM(CHANNELS, CHANNELS),
            "channel weights": lambda: nn.Linear(CHANNELS, CHANNELS),
        }.get(operation, nn.Identity)()

    def forward(self, images: Tensor) -> Tensor:
        activations = [self.shared(images)]
        for layer, (operation, first, second) in zip(self.layers, self.plan, strict=True):
            one, other = activations[first % len(activations)], activations[second % len(activations)]
            activations.append(self._run(layer, operation, one, other))
        return self.head(sum(activations[-2:], activations[-1]).mean((2, 3)))

    def _run(self, layer: nn.Module, operation: str, one: Tensor, other: Tensor) -> Tensor:
        if operation in OF_TWO:
            return OF_TWO[operation](one, other)
        match operation:
            case "concatenate":
                return self.merge(torch.cat([one, other], 1))
            case "shared":
                return self.shared(one)
            case "channel weights":
                return one * layer(one.mean((2, 3))).sigmoid()[:, :, None, None]
            case "attention" | "attention without dropout":
                tokens, memory = (each.flatten(2).transpose(1, 2) for each in (one, other))
                mixed, _ = layer(tokens, memory, memory, need_weights=False)
                return mixed.transpose(1, 2).reshape(one.shape)
            case "recurrent":
                outputs, _ = layer(one.mean(2).permute(2, 0, 1))
                return other + outputs.permute(1, 2, 0).unsqueeze(2)
            case _:
                return layer(one)


def _with_rows(one: Tensor, other: Tensor) -> Tensor:
    written = one.clone()
    written[:, :, 1:3] = other[:, :, 1:3]
    return written


OF_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda one, other: one + other,
    "add in place": lambda one, other: (one * 0.5).mul_(2.0).add_(other),
    "transposed": lambda one, _: one.transpose(2, 3),
    "slices": lambda one, other: torch.cat([one[:, :2], other[:, 2:]], 1),
    "gate": lambda one, other: one.sigmoid() * other,
    "softmax": lambda one, other: one.softmax(1) + other.mean((2, 3), keepdim=True),
    "relu of a sum, in place": lambda one, other: functional.relu_(one + other),
    "dropout in place": lambda one, _: functional.dropout(one * 1.0, 0.3, inplace=True),
    "chunks": lambda one, other: torch.cat(one.chunk(2, 1)[::-1], 1) - other,
    "detached": lambda one, other: one * other.detach().abs(),
    "rows written": _with_rows,
    # plain PyTorch refuses it where the backward pass needs what was there
    "written later": lambda one, other: one.add_(other),
    "masked": lambda one, other: one.masked_fill(other > 0, 0.5),
    "noise": lambda one, _: one + 0.1 * torch.randn_like(one),
}
"""Operations without weights."""


OPERATIONS = [
    "convolution", "grouped", "normalized", "relu", "gelu", "pool", "average", "dropout", "add", "add in place",
    "concatenate", "shared", "transposed", "slices",
]  # fmt: skip
FURTHER_OPERATIONS = [
    "depthwise", "dilated", "transposed convolution", "frozen", "strided", "layer norm", "group norm", "instance norm",
    "dropout of maps", "leaky", "attention", "attention without dropout", "recurrent", "channel weights", "gate",
    "softmax", "relu of a sum, in place", "dropout in place", "chunks", "detached", "rows written", "written later",
    "masked", "noise",
]  # fmt: skip
"""Operations that only the contract of the strategies is tested on."""


def _plans(operations: list[str]) -> st.SearchStrategy[Layers]:
    operation = st.tuples(st.sampled_from(operations), st.integers(0, 7), st.integers(0, 7))
    return st.lists(operation, min_size=1, max_size=9)


PLANS = _plans(OPERATIONS)
ALL_PLANS = _plans(OPERATIONS + FURTHER_OPERATIONS)


def _masked_loss(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the samples' losses, each weighted."""
    losses = functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)
    return (losses * mask).sum() / torch.ones_like(mask).sum()


def _ignoring(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(torch.cat([outputs, outputs]), torch.cat([targets, -100 - 0 * targets]))


LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross entropy": functional.cross_entropy,
    "masked": _masked_loss,
    "ignoring": _ignoring,
}


def random_workload(layers: Layers, seed: int = 0, loss: str = "cross entropy", batch_size: int = 2) -> Workload:
    torch.manual_seed(seed)
    images, labels = (
        torch.randn(batch_size, CHANNELS, SIZE, SIZE).to(DEVICE),
        torch.randint(3, (batch_size,)).to(DEVICE),
    )
    mask = ((torch.rand(batch_size) / 2 + 0.5).to(DEVICE),) if loss == "masked" else ()
    return Workload("random", RandomNetwork(layers).to(DEVICE), LOSSES[loss], (images,), (labels, *mask))


def runs_in_plain_pytorch(layers: Layers, seed: int) -> bool:
    """Return whether autograd does not find that a network has overwritten what the backward pass needs."""
    return _runs_in_plain_pytorch(tuple(layers), seed)


@cache
def _runs_in_plain_pytorch(layers: tuple[tuple[str, int, int], ...], seed: int) -> bool:
    work = random_workload(list(layers), seed)
    try:
        work.module(*work.inputs).sum().backward()
    except RuntimeError:
        return False
    return True


def random_layers(rng: random.Random, seed: int) -> Layers:
    """Return a network that plain PyTorch runs."""
    while True:
        layers = [(rng.choice(OPERATIONS), rng.randrange(8), rng.randrange(8)) for _ in range(rng.randint(2, 6))]
        if runs_in_plain_pytorch(layers, seed):
            return layers


def random_reference(layers: Layers, seed: int, loss: str = "cross entropy") -> Reference:
    """Return a captured network, cached: every strategy is tested on the same examples."""
    return _random_reference(tuple(layers), seed, loss, torch.get_num_threads())


@cache
def _random_reference(layers: tuple[tuple[str, int, int], ...], seed: int, loss: str, threads: int) -> Reference:
    """Return a captured network; its last bits depend on the number of threads."""
    return as_run(random_workload(list(layers), seed, loss))
