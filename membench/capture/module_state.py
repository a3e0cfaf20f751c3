"""What a captured step takes for granted of its module, and steps that leave a module as it was."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, compress
from operator import attrgetter, is_, itemgetter
from typing import Any, NoReturn

import torch
from torch import nn

from membench.core.errors import ModuleChanged, UnsupportedModel

_MODE, _IS_TRAINED = attrgetter("training"), attrgetter("requires_grad")
_HOOKS_OF_A_WEIGHT = (attrgetter("_backward_hooks"), attrgetter("_post_accumulate_grad_hooks"))
_HOOKS_OF_A_MODULE = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PLAIN = (bool, int, float, str)
"""Types of attributes whose values can be compared."""
OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Names of attributes that are torch's own."""
_ABSENT = object()


class ModuleState:
    """The modes, layers, weights, buffers, hooks and numbers with which a module and its loss were captured.

    Values of tensors may change, and where they lie in memory. Which tensors there are and what is done with them may
    not: the step would go on computing what the module no longer does. Private attributes are their owner's affair.

    Args:
        module: as it was captured.
        loss: likewise; None: no gradients are wanted, so that it does not matter which weights are frozen.

    Raises:
        UnsupportedModel: a weight has a hook on its gradient.
    """

    def __init__(self, module: nn.Module, loss: Callable[..., Any] | None) -> None:
        self._modules = list(module.named_modules())
        if isinstance(loss, nn.Module):
            self._modules += loss.named_modules(prefix="loss")
        self._children = [child for _, child in self._modules]
        self._modes = [child.training for child in self._children]
        parts = [
            (path, parts)
            for path, child in self._modules
            for parts in (child._modules, child._parameters, child._buffers)
            if parts
        ]
        self._parts = [each for _, each in parts]
        self._earlier_parts = [(path, dict(each)) for path, each in parts]
        self._held = self._held_now()
        self._hooks = [
            (path, getattr(child, kind)) for path, child in self._modules for kind in _HOOKS_OF_A_MODULE
        ]
        self._hook_counts = [len(hooks) for _, hooks in self._hooks]
        owners = self._modules if isinstance(loss, nn.Module) else [*self._modules, ("loss", loss)]
        self._earlier_numbers = [
            (path, vars(owner), numbers) for path, owner in owners if (numbers := _public_numbers(owner))
        ]
        self._attributes = [
            (itemgetter(*numbers), of_owner) for _, of_owner, numbers in self._earlier_numbers
        ]
        self._numbers = self._numbers_now()
        self._weights = dict(module.named_parameters()) if loss is not None else {}
        self._trained = [weight.requires_grad for weight in self._weights.values()]
        self._check_gradient_hooks()

    def check(self) -> None:
        """Refuse a module that is no longer what was captured. Takes some microseconds for each layer.

        Raises:
            ModuleChanged: names the first layer or weight, and what became of it.
            UnsupportedModel: a weight has a hook on its gradient now.
        """
        if not all(map(is_, map(_MODE, self._children), self._modes)):
            self._refuse_mode()
        held = self._held_now()
        if len(held) != len(self._held) or not all(map(is_, held, self._held)):
            self._refuse_part()
        if not all(map(is_, map(_IS_TRAINED, self._weights.values()), self._trained)):
            self._refuse_freezing()
        if self._has_other_numbers():
            self._refuse_number()
        counts = [len(hooks) for _, hooks in self._hooks]
        if counts != self._hook_counts:
            self._refuse_hooks(counts)
        self._check_gradient_hooks()

    def _held_now(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._parts)))

    def _has_other_numbers(self) -> bool:
        try:
            return self._numbers_now() != self._numbers
        except (
            KeyError,
            RuntimeError,
            ValueError,
        ):  # one is gone, or an array now, which is not equal or unequal
            return True

    def _numbers_now(self) -> list[Any]:
        return [numbers_of(attributes) for numbers_of, attributes in self._attributes]

    def _check_gradient_hooks(self) -> None:
        for hooks in _HOOKS_OF_A_WEIGHT:
            trained = compress(self._weights.items(), self._trained)
            if name := next((name for name, weight in trained if hooks(weight)), None):
                raise UnsupportedModel(
                    name,
                    "its gradient has a hook, which a step does not call",
                    "remove the hook and change .grad after the step",
                )

    def _refuse_hooks(self, counts: list[int]) -> NoReturn:
        found = zip(self._hooks, counts, self._hook_counts, strict=True)
        path = next(path for (path, _), count, earlier in found if count != earlier)
        raise ModuleChanged(
            f"{_layer(path)} has other hooks than when the step was captured, which is when they are called; compile again"
        )

    def _refuse_mode(self) -> NoReturn:
        modes = zip(self._modules, self._modes, strict=True)
        path, was_training = next((p, was) for (p, child), was in modes if child.training is not was)
        now, then = ("evaluation", "training") if was_training else ("training", "evaluation")
        raise ModuleChanged(
            f"{_layer(path)} is in {now} mode, and the step was captured in {then} mode; switch the module back, or "
            "compile a step for each mode"
        )

    def _refuse_part(self) -> NoReturn:
        path, key = next(
            (path, key)
            for parts, (path, earlier) in zip(self._parts, self._earlier_parts, strict=True)
            for key in {**earlier, **parts}
            if parts.get(key, _ABSENT) is not earlier.get(key, _ABSENT)
        )
        raise ModuleChanged(
            f"{_layer(path)} has another {key!r} than the step was captured with; change values in place, or compile again"
        )

    def _refuse_number(self) -> NoReturn:
        path, name, now, then = next(
            (path, name, attributes.get(name), number)
            for path, attributes, numbers in self._earlier_numbers
            for name, number in numbers.items()
            if type(attributes.get(name)) is not type(number) or attributes[name] != number
        )
        raise ModuleChanged(
            f"{_layer(path)} has {name}={now!r}, and had {then!r} when the step was captured; compile again, or hold what "
            "changes in a buffer or a target"
        )

    def _refuse_freezing(self) -> NoReturn:
        trained = zip(self._weights.items(), self._trained, strict=True)
        name, was_trained = next((n, was) for (n, weight), was in trained if weight.requires_grad is not was)
        now, then = ("frozen", "trained") if was_trained else ("trained", "frozen")
        raise ModuleChanged(
            f"weight {name!r} is {now}, and was {then} when the step was captured; compile again"
        )


@contextmanager
def preserve_state(module: nn.Module, device: torch.device) -> Iterator[None]:
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


def _public_numbers(owner: object) -> dict[str, Any]:
    """Return the attributes, torch's own left out, by which a layer or a loss computes: Python's numbers and words."""
    return {
        name: value
        for name, value in getattr(owner, "__dict__", {}).items()
        if type(value) in PLAIN and name not in OF_EVERY_MODULE and not name.startswith("_")
    }


def _layer(path: str) -> str:
    return f"layer {path!r}" if path else "the module"
