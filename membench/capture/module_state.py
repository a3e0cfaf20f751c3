"""The state of a module that a captured step depends on, and steps without side effects on a module."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain, compress
from operator import attrgetter, is_, itemgetter
from typing import Any, NoReturn

import torch
from torch import nn

from membench.core.errors import ModuleChanged, UnsupportedModel
from membench.core.torch_internals import MODULE_ATTRIBUTES, WEIGHT_HOOKS, module_hooks, module_members

_MODE, _IS_TRAINED = attrgetter("training"), attrgetter("requires_grad")
PLAIN = (bool, int, float, str)
"""Types of attributes whose values can be compared."""
_CONTAINERS = (list, tuple, dict)
_ABSENT = object()


class ModuleState:
    """The modes, layers, weights, buffers, hooks and numbers with which a module and its loss were captured.

    The values of tensors and their addresses may change. The set of tensors and the computation may not: the step would
    go on computing what the module no longer does. Numbers in lists, tuples and dicts count as well, except those that are
    appended to a list, as notes are. Attributes with a leading underscore are not checked.

    Args:
        module: as it was captured.
        loss: as it was captured; None in a step that computes none: whether its weights are frozen is not checked.
        has_own_hooks: hooks of the module itself belong to the step; see `Workload`.

    Raises:
        UnsupportedModel: a weight has a hook on its gradient.
    """

    def __init__(
        self, module: nn.Module, loss: Callable[..., Any] | None, *, has_own_hooks: bool = True
    ) -> None:
        self._modules = list(module.named_modules())
        if isinstance(loss, nn.Module):
            self._modules += loss.named_modules(prefix="loss")
        self._children = [child for _, child in self._modules]
        self._modes = [child.training for child in self._children]
        members = [(path, each) for path, child in self._modules for each in module_members(child) if each]
        self._members = [each for _, each in members]
        self._earlier_members = [(path, dict(each)) for path, each in members]
        self._held = self._held_now()
        hooked = self._modules if has_own_hooks else self._modules[1:]
        self._hooks = [(path, hooks) for path, child in hooked for hooks in module_hooks(child)]
        self._hook_counts = [len(hooks) for _, hooks in self._hooks]
        owners = self._modules if isinstance(loss, nn.Module) else [*self._modules, ("loss", loss)]
        self._earlier_numbers = [
            (path, vars(owner), numbers) for path, owner in owners if (numbers := _public_numbers(owner))
        ]
        self._attributes = [
            (itemgetter(*numbers), of_owner) for _, of_owner, numbers in self._earlier_numbers
        ]
        self._numbers = [itemgetter(*numbers)(numbers) for _, _, numbers in self._earlier_numbers]
        self._weights = dict(module.named_parameters()) if loss is not None else {}
        self._trained = [weight.requires_grad for weight in self._weights.values()]
        self._check_gradient_hooks()

    def check(self) -> None:
        """Refuse a module that differs from the captured one; takes some microseconds per layer.

        Raises:
            ModuleChanged: names the first layer or weight that differs, and the difference.
            UnsupportedModel: a weight has a hook on its gradient.
        """
        if not all(map(is_, map(_MODE, self._children), self._modes)):
            self._refuse_mode()
        held = self._held_now()
        if len(held) != len(self._held) or not all(map(is_, held, self._held)):
            self._refuse_member()
        if not all(map(is_, map(_IS_TRAINED, self._weights.values()), self._trained)):
            self._refuse_freezing()
        if self._has_other_numbers():
            self._refuse_number()
        counts = [len(hooks) for _, hooks in self._hooks]
        if counts != self._hook_counts:
            self._refuse_hooks(counts)
        self._check_gradient_hooks()

    def _held_now(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._members)))

    def _has_other_numbers(self) -> bool:
        try:
            return self._numbers_now() != self._numbers and self._changed_number() is not None
        except (KeyError, RuntimeError, ValueError):
            return True  # one was deleted, or is an array, which has no single truth value

    def _changed_number(self) -> tuple[str, str, Any, Any] | None:
        """Return the first that differs: path, name, and its values now and at the capture."""
        return next(
            (
                (path, name, attributes.get(name), number)
                for path, attributes, numbers in self._earlier_numbers
                for name, number in numbers.items()
                if _differs(attributes.get(name), number)
            ),
            None,
        )

    def _numbers_now(self) -> list[Any]:
        return [numbers_of(attributes) for numbers_of, attributes in self._attributes]

    def _check_gradient_hooks(self) -> None:
        for hooks in WEIGHT_HOOKS:
            trained = compress(self._weights.items(), self._trained)
            if name := next((name for name, weight in trained if hooks(weight)), None):
                raise UnsupportedModel(
                    name,
                    "its gradient has a hook, which a compiled step does not call",
                    "remove the hook and change .grad after the step",
                )

    def _refuse_hooks(self, counts: list[int]) -> NoReturn:
        found = zip(self._hooks, counts, self._hook_counts, strict=True)
        path = next(path for (path, _), count, earlier in found if count != earlier)
        raise ModuleChanged(
            f"the hooks of {_layer(path)} have changed since the step was captured, which is when hooks run; compile again"
        )

    def _refuse_mode(self) -> NoReturn:
        modes = zip(self._modules, self._modes, strict=True)
        path, was_training = next((p, was) for (p, child), was in modes if child.training is not was)
        now, then = ("evaluation", "training") if was_training else ("training", "evaluation")
        raise ModuleChanged(
            f"{_layer(path)} is in {now} mode, but the step was captured in {then} mode; switch the module back, or "
            "compile a step for each mode"
        )

    def _refuse_member(self) -> NoReturn:
        path, key = next(
            (path, key)
            for members, (path, earlier) in zip(self._members, self._earlier_members, strict=True)
            for key in {**earlier, **members}
            if members.get(key, _ABSENT) is not earlier.get(key, _ABSENT)
        )
        raise ModuleChanged(
            f"{key!r} of {_layer(path)} is not the object that the step was captured with; change values in place, or "
            "compile again"
        )

    def _refuse_number(self) -> NoReturn:
        changed = self._changed_number()
        assert changed is not None
        path, name, now, then = changed
        raise ModuleChanged(
            f"{_layer(path)} has {name}={now!r}, but had {then!r} when the step was captured; compile again, or put a "
            "value that changes into a buffer or a target"
        )

    def _refuse_freezing(self) -> NoReturn:
        trained = zip(self._weights.items(), self._trained, strict=True)
        name, was_trained = next((n, was) for (n, weight), was in trained if weight.requires_grad is not was)
        now, then = ("frozen", "trained") if was_trained else ("trained", "frozen")
        raise ModuleChanged(
            f"weight {name!r} is {now}, but was {then} when the step was captured; compile again"
        )


@contextmanager
def preserve_state(
    module: nn.Module, device: torch.device, optimizer: torch.optim.Optimizer | None = None
) -> Iterator[None]:
    """Run steps without side effects: gradients start as None; gradients, buffers and RNG state are restored.

    Args:
        optimizer: updates the weights in a step; then they are restored as well, and its states and options.
    """
    updated = dict(module.named_buffers()) | (dict(module.named_parameters()) if optimizer else {})
    before = {name: tensor.detach().clone() for name, tensor in updated.items()}
    of_optimizer = _state_of(optimizer)
    gradients = {name: weight.grad for name, weight in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for name, tensor in updated.items():
                tensor.copy_(before[name])
        if optimizer:
            _restore(optimizer, of_optimizer)
        for name, weight in module.named_parameters():
            weight.grad = gradients[name]


_OptimizerState = tuple[dict[Any, Any], list[dict[str, Any]]]
"""Copies of an optimizer's states by weight, and of the options of its groups."""


def _state_of(optimizer: torch.optim.Optimizer | None) -> _OptimizerState:
    if optimizer is None:
        return {}, []
    groups = [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups]
    return {weight: deepcopy(state) for weight, state in optimizer.state.items()}, deepcopy(groups)


def _restore(optimizer: torch.optim.Optimizer, state: _OptimizerState) -> None:
    states, groups = state
    optimizer.state.clear()
    optimizer.state.update(states)
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        group.update(options)


def _public_numbers(owner: object) -> dict[str, Any]:
    """Return the numbers and strings that a layer or a loss computes with, and copies of containers of nothing else."""
    return {
        name: deepcopy(value)
        for name, value in own_attributes(owner).items()
        if _is_plain(value) and not name.startswith("_")
    }


def _differs(now: Any, then: Any) -> bool:
    if type(now) is not type(then):
        return True
    return bool((now[: len(then)] if isinstance(then, list) else now) != then)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number or a string, or a container of such and of None."""
    if type(value) not in _CONTAINERS:
        return type(value) in PLAIN
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return all(item is None or _is_plain(item) for _, item in items)


def own_attributes(owner: object) -> dict[str, Any]:
    """Return an object's attributes except those that torch keeps in every module."""
    return {
        name: value for name, value in getattr(owner, "__dict__", {}).items() if name not in MODULE_ATTRIBUTES
    }


def _layer(path: str) -> str:
    return f"layer {path!r}" if path else "the module"
