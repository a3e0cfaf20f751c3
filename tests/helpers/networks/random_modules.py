"""Random modules with what programs pass: views, objects, inputs twice, their gradients, checkpointing."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.helpers.networks.random_networks import CHANNELS, FURTHER_OPERATIONS, OPERATIONS, SIZE, RandomNetwork


@dataclass
class Settings:
    """An argument with attributes."""

    scale: float = 0.75


class Slotted:
    """An argument without a dict of attributes."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 0.75


class Scaling:
    """An argument that is called."""

    scale = 0.75

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor * self.scale


CARRIERS = {
    "number": 0.75,
    "complex number": 0.75 + 0.5j,
    "dict": {"scale": 0.75},
    "dataclass": Settings(),
    "namespace": SimpleNamespace(scale=0.75),
    "slots": Slotted(),
    "callable": Scaling(),
}
"""Arguments that are not tensors; the same object in each step."""


def _scaled(tensor: Tensor, carrier: Any) -> Tensor:
    if isinstance(carrier, complex):
        return (tensor * carrier).imag
    if callable(carrier):
        return carrier(tensor)
    if isinstance(carrier, dict):
        return tensor * carrier["scale"]
    return tensor * getattr(carrier, "scale", carrier)


def _attention(one: Tensor, other: Tensor, width: int) -> Tensor:
    tokens = (each.flatten(2).transpose(1, 2) for each in (one, other, one))
    heads = (each.unflatten(2, (-1, width)).transpose(1, 2) for each in tokens)
    mixed = functional.scaled_dot_product_attention(*heads, dropout_p=0.1)
    return mixed.transpose(1, 2).flatten(2).transpose(1, 2).reshape(one.shape)


def _written(one: Tensor, other: Tensor) -> Tensor:
    tensor = one * 1
    tensor[:, 0] = 0.5
    tensor[:, 1:2].lerp_(other[:, :1], 0.25)
    return tensor


OF_NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "complex product": lambda one, other: (one * 1j * other).imag,
    "complex sum": lambda one, other: ((one + 2j) * (1 + other * 0.5j)).real,
    "spectrum": lambda one, _: torch.fft.irfft(torch.fft.rfft(one) * (1 + 0.5j), n=SIZE),
    "conjugate": lambda one, other: (torch.complex(one, other).conj() * (0.5 + 1j)).imag,
    "complex quotient": lambda one, other: (one / (1 + 2j) - other).real,
    "numbers": lambda one, other: (2.0 - one) / 3 + other.abs() ** 1.5 // 2,
    "where": lambda one, other: torch.where(other > 0, one, 0.5),
    "alpha": lambda one, other: torch.add(torch.sub(one, 1, alpha=2), other, alpha=0.3),
    "whole numbers": lambda one, _: one * (torch.arange(SIZE) // 2 + 1) * 0.5,
    "double": lambda one, other: (one.double() * 0.1 + other).float(),
    "clamp": lambda one, other: one.clamp(-1, 0.5) + other.clamp_min(0.1),
    "sum of three": lambda one, other: one + one * other + torch.tanh(one),
    "written with numbers": _written,
    "heads of one element": partial(_attention, width=1),
    "heads of two elements": partial(_attention, width=2),
    "one map": lambda one, other: (one[:, :1] * 2).relu_() * other,
    "means": lambda one, other: one.mean((2, 3), keepdim=True).sigmoid() * other,
    "one column": lambda one, other: other + one[..., :1].transpose(2, 3).contiguous().transpose(2, 3),
}
"""Operations without weights: Python's numbers, complex tensors, dimensions with one element."""

OF_TOKENS: dict[str, Callable[[], nn.Module]] = {
    "region that ends in dropout and a linear layer": lambda: nn.Sequential(
        nn.Linear(SIZE, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, SIZE)
    ),
    "region of a convolution": lambda: nn.Sequential(
        nn.Conv2d(CHANNELS, CHANNELS, 1), nn.BatchNorm2d(CHANNELS), nn.ReLU(inplace=True)
    ),
    "encoder": lambda: nn.TransformerEncoderLayer(CHANNELS, 2, 8, dropout=0.1, batch_first=True),
    "encoder of one head": lambda: nn.TransformerEncoderLayer(
        CHANNELS, 1, 8, dropout=0.1, batch_first=True, norm_first=True
    ),
    "region of an encoder": lambda: nn.TransformerEncoderLayer(CHANNELS, 4, 8, dropout=0.1, batch_first=True),
    "tied": lambda: nn.Linear(SIZE, SIZE),
}
"""Operations with weights; those named regions are checkpointed."""

ALL_OPERATIONS = [*OPERATIONS, *FURTHER_OPERATIONS, *OF_NUMBERS, *OF_TOKENS]


class RandomModule(RandomNetwork):
    """A `RandomNetwork` with further operations, inputs and outputs."""

    def __init__(self, case: "Case") -> None:
        super().__init__([*case.layers])
        self.case = case
        self.tied = nn.Linear(SIZE, SIZE)
        for layer in self.layers:
            if isinstance(layer, nn.Linear) and layer.in_features == SIZE:
                layer.weight = self.tied.weight
        self.register_buffer("mean", torch.zeros(CHANNELS, SIZE, SIZE))
        if case.aliases:
            self.register_buffer("first", self.mean[:2])

    def _layer(self, operation: str) -> nn.Module:
        return OF_TOKENS[operation]() if operation in OF_TOKENS else super()._layer(operation)

    def _run(self, layer: nn.Module, operation: str, one: Tensor, other: Tensor) -> Tensor:
        if operation in OF_NUMBERS:
            return OF_NUMBERS[operation](one, other)
        if operation not in OF_TOKENS:
            return super()._run(layer, operation, one, other)
        if "encoder" in operation:
            tokens = one.flatten(2).transpose(1, 2)
            made = _called(layer, tokens, operation).transpose(1, 2).reshape(one.shape)
        else:
            made = _called(layer, one, operation)
        return made + other

    def forward(self, images: Tensor, *others: Any) -> Any:
        tensors = [each for each in others if isinstance(each, Tensor)]
        for position, each in enumerate(tensors):
            images = images * 1 + each.mean() * 0.1 if each.shape != images.shape else images + each * (position + 2)
        for each in others:
            images = images if isinstance(each, Tensor) else _scaled(images, each)
        if self.case.aliases:
            with torch.no_grad():
                self.mean.lerp_(images.detach().mean(0), 0.1)
            images = images + self.first.mean()
        logits = super().forward(images)
        match self.case.outputs:
            case "several":
                return logits, {"scaled": logits * 2, "mean": images.mean((1, 2, 3))}
            case "twice":
                return logits, logits.sigmoid(), logits[:, :1]
            case _:
                return logits


def _called(layer: nn.Module, tensor: Tensor, operation: str) -> Tensor:
    made: Tensor = checkpoint(layer, tensor, use_reentrant=False) if "region" in operation else layer(tensor)
    return made


def loss_of(outputs: Any, targets: Tensor, *others: Tensor) -> Tensor:
    """Return a loss of whatever a `RandomModule` returns, and of targets that may be views of its inputs."""
    logits, *rest = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = functional.cross_entropy(logits, targets)
    for each in rest:
        for tensor in each.values() if isinstance(each, dict) else (each,):
            loss = loss + tensor.square().mean() * 0.1
    return loss + sum(((logits[:, :1] - each.mean()).square().mean() for each in others), logits.sum() * 0)


INPUTS = ("one", "twice", "view", "part", "detached", "transposed", "weight", "apart")
"""What is passed besides the images: nothing, or a tensor in what memory."""


@dataclass(frozen=True)
class Case:
    """A random module, its inputs, and how it is run; its text makes it again.

    Attributes:
        layers: see `RandomNetwork`.
        inputs: one of `INPUTS`.
        target: whether a target is a view of the images.
        with_gradient: whether the images ask for a gradient, of a wrapped module.
        carrier: a key of `CARRIERS`; empty: none.
        aliases: whether a buffer is a part of another, which each step writes.
        entry: ``"compile"`` or ``"wrap"``.
        room: where a budget is, between the lower bound and the peak without one; None: there is none.
        in_thread: whether later steps run in another thread.
    """

    seed: int
    layers: tuple[tuple[str, int, int], ...]
    strategy: str
    entry: str = "compile"
    batch_size: int = 2
    inputs: str = "one"
    target: bool = False
    with_gradient: bool = False
    carrier: str = ""
    outputs: str = "one"
    aliases: bool = False
    room: float | None = None
    in_thread: bool = False

    def module(self) -> RandomModule:
        torch.manual_seed(self.seed)
        return RandomModule(self)

    def arguments(self, module: RandomModule, step: int) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
        """Return the inputs and the targets of a step, of the same values each time."""
        torch.manual_seed(1000 * self.seed + step)
        images = torch.randn(self.batch_size, CHANNELS, SIZE, SIZE)
        labels = torch.randint(3, (self.batch_size,))
        if self.with_gradient:
            images.requires_grad_()
        others: dict[str, Callable[[], tuple[Any, ...]]] = {
            "one": lambda: (),
            "twice": lambda: (images, images),
            "view": lambda: (images.detach()[:],),
            "part": lambda: (images.detach()[:, 1:],),
            "detached": lambda: (images.detach(),),
            "transposed": lambda: (images.detach().transpose(2, 3),),
            "weight": lambda: ((module.tied.weight if self.entry == "wrap" else module.tied.weight.detach()),),
            "apart": lambda: (torch.randn(images.shape),),
        }
        further = others[self.inputs]()
        carried = (CARRIERS[self.carrier],) if self.carrier else ()
        targets = (labels, images.detach()[:, :2]) if self.target else (labels,)
        return (images, *further, *carried), targets


def random_case(seed: int, strategies: list[str]) -> Case:
    """Return a case; every strategy comes up in a run of many."""
    rng = random.Random(seed)
    entry = rng.choice(["compile", "wrap"])
    layers = tuple((rng.choice(ALL_OPERATIONS), rng.randrange(8), rng.randrange(8)) for _ in range(rng.randint(1, 5)))
    return Case(
        seed=seed,
        layers=layers,
        strategy=strategies[seed % len(strategies)],
        entry=entry,
        batch_size=rng.choice([1, 1, 2, 3]),
        inputs=rng.choice(INPUTS),
        target=rng.random() < 0.3,
        with_gradient=entry == "wrap" and rng.random() < 0.4,
        carrier=rng.choice(["", "", *CARRIERS]),
        outputs=rng.choice(["one", "one", "several", "twice"]),
        aliases=rng.random() < 0.2,
        room=rng.choice([None, None, 0.0, rng.random()]),
        in_thread=rng.random() < 0.2,
    )
