"""Loops around a module and around the wrapped one, compared bit for bit."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import membench
from membench.core.libraries.torch_internals import tree_flatten

CLASSES = 3


class Small(nn.Module):
    """Convolution, batch norm and dropout, with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(4, CLASSES)
        self.other = nn.Linear(4, 2)
        self.scale = 1.0
        self.options = {"scale": 2.0, "activation": functional.relu}

    def forward(self, images: Tensor, bias: Tensor | None = None) -> dict[str, Any]:
        pooled = self.features(images).mean((2, 3)) * self.scale
        if bias is not None:
            pooled = pooled + bias
        pooled = self.options["activation"](pooled) * self.options["scale"]
        return {"logits": self.head(pooled), "other": self.other(pooled), "kind": "small"}


def batch(size: int = 4, seed: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 3, 6, 6, generator=generator)
    return images, torch.randint(CLASSES, (size,), generator=generator)


def pair(build: Callable[[], nn.Module] = Small, **options: Any) -> Iterator[nn.Module]:
    """Yield a module and a wrapped one with the same weights."""
    torch.manual_seed(0)
    module = build()
    yield copy.deepcopy(module)
    yield membench.wrap(module, strategy=options.pop("strategy", "layrub_hybrid"), **options)


def state_of(module: nn.Module) -> list[Tensor | None]:
    """Return copies of a module's weights, buffers and gradients."""
    gradients = [None if weight.grad is None else weight.grad.clone() for weight in module.parameters()]
    return [*(tensor.clone() for tensor in module.state_dict().values()), *gradients]


def check_same(ours: Any, theirs: Any) -> None:
    """Check nested tensors for the same bits."""
    ours, theirs = (tree_flatten(each) for each in (ours, theirs))
    assert ours[1] == theirs[1]
    for one, other in zip(ours[0], theirs[0], strict=True):
        if isinstance(one, Tensor):
            assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
            assert one.detach().reshape(-1).equal(other.detach().reshape(-1))
        else:
            assert one == other


def check_loop(loop: Callable[[nn.Module], Any], build: Callable[[], nn.Module] = Small, **options: Any) -> nn.Module:
    """Check that a loop ends alike with a module and with the wrapped one; return the wrapped one."""
    plain, wrapped = pair(build, **options)
    found = []
    for module in (plain, wrapped):
        torch.manual_seed(1)
        found.append((loop(module), state_of(module)))
    check_same(*found)
    assert wrapped.wrapped_calls.waiting_bytes == 0 or wrapped.wrapped_calls.steps == ()
    return wrapped


def loss_of(module: nn.Module, size: int = 4, seed: int = 7) -> Tensor:
    images, targets = batch(size, seed)
    outputs = module(images)
    return functional.cross_entropy(outputs["logits"], targets) + outputs["other"].square().mean()
