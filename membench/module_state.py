"""What a captured step takes for granted of its module, and steps that leave a module as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_

import torch
from torch import nn

from membench.errors import ModuleChanged, UnsupportedModel


class ModuleState:
    """The modes, layers, weights and buffers with which a module was captured.

    Values may change, and where they lie in memory. Which tensors there are and what is done with them may not: the
    step would go on computing what the module no longer does.

    Args:
        module: as it was captured.
        trains: gradients are wanted, so that it matters which weights are frozen.

    Raises:
        UnsupportedModel: a weight has a hook on its gradient.
    """

    def __init__(self, module: nn.Module, *, trains: bool) -> None:
        modules = list(module.named_modules())
        weights = list(module.named_parameters())
        self._modes = [(path, child, child.training) for path, child in modules]
        self._parts = [
            (path, parts, dict(parts))
            for path, child in modules
            for parts in (child._modules, child._parameters, child._buffers)
            if parts
        ]
        self._dtypes = [(name, weight, weight.dtype) for name, weight in weights]
        self._trained = [(name, weight, weight.requires_grad) for name, weight in weights] if trains else []
        for name, weight, is_trained in self._trained:
            if is_trained and (weight._backward_hooks or weight._post_accumulate_grad_hooks):
                raise UnsupportedModel(
                    name,
                    "its gradient has a hook, which a step does not call",
                    "remove the hook and change .grad after the step",
                )

    def check(self) -> None:
        """Refuse a module that is no longer what was captured.

        Raises:
            ModuleChanged: names the first layer or weight, and what became of it.
        """
        for path, child, was_training in self._modes:
            if child.training is not was_training:
                raise ModuleChanged(
                    f"{_layer(path)} is in {_mode(child.training)} mode, and the step was captured in {_mode(was_training)} "
                    "mode; switch the module back, or compile a step for each mode"
                )
        for path, parts, captured in self._parts:
            if len(parts) != len(captured) or not all(map(is_, parts.values(), captured.values())):
                key = next(key for key in {**captured, **parts} if parts.get(key) is not captured.get(key))
                raise ModuleChanged(
                    f"{_layer(path)} has another {key!r} than the step was captured with; change values in place, or compile "
                    "again"
                )
        for name, weight, dtype in self._dtypes:
            if weight.dtype is not dtype:
                raise ModuleChanged(
                    f"weight {name!r} is {weight.dtype}, and the step was captured for {dtype}; compile again"
                )
        for name, weight, was_trained in self._trained:
            if weight.requires_grad is not was_trained:
                now, then = ("trained", "frozen") if weight.requires_grad else ("frozen", "trained")
                raise ModuleChanged(
                    f"weight {name!r} is {now}, and the step was captured with it {then}; compile again"
                )


@contextmanager
def left_as_it_was(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Let steps run without a trace: on gradients of none, with buffers and random numbers put back afterwards."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    gradients = {name: weight.grad for name, weight in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])
        for name, weight in module.named_parameters():
            weight.grad = gradients[name]


def _layer(path: str) -> str:
    return f"layer {path!r}" if path else "the module"


def _mode(is_training: bool) -> str:
    return "training" if is_training else "evaluation"
