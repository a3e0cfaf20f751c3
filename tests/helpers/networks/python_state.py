"""Modules that read a value of Python in their forward pass, and what changes it between two steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import membench
from membench.steps.real import watched_state

DATA = torch.randn(5, 6), torch.randint(3, (5,))


class Read(nn.Module):
    """A layer times what a function reads."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(6, 3), read

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) * self.read(self)


class Held:
    """An object with an attribute."""

    scale = 1.0

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def scaled(self) -> float:
        return self.scale

    def __call__(self) -> float:
        return self.scale


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale


def scaled(scale: float = 1.0) -> float:
    return scale


@dataclass(frozen=True)
class Kind:
    """A kind of state.

    Attributes:
        value: value of the attribute ``held`` of the module.
        read: what the forward pass multiplies with.
        change: what happens between two steps.
    """

    value: Callable[[], Any]
    read: Callable[[Any], Any]
    change: Callable[[Any], object]


def attribute(one: Any, other: Any, read: Callable[[Any], Any] = lambda module: module.held) -> Kind:
    return Kind(lambda: one, read, lambda module: setattr(module, "held", other))


def within(value: Callable[[], Any], read: Callable[[Any], Any], change: Callable[[Any], object]) -> Kind:
    return Kind(value, lambda module: read(module.held), lambda module: change(module.held))


def module_of(kind: Kind) -> Any:
    torch.manual_seed(0)
    module = Read(kind.read)
    module.held = kind.value()
    module.layer._of = 1.0
    return module


def plain(module: nn.Module) -> tuple[Tensor, Tensor]:
    module.zero_grad()
    loss = F.cross_entropy(module(DATA[0]), DATA[1])
    loss.backward()
    return loss.detach(), module.layer.weight.grad


def step_of(module: nn.Module, strategy: str = "eager") -> Callable[..., Any]:
    step = membench.compile(module, nn.CrossEntropyLoss(), DATA, strategy=strategy)
    return lambda inputs: step(inputs, DATA[1])


def call_twice(step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a step, and once more when it is time to record it again."""
    step(DATA[0])
    with monkeypatch.context() as due:
        due.setattr(watched_state, "_SHARE", 1e9)
        step(DATA[0])
