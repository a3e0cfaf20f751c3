"""The state of a module that a captured step depends on, and steps without side effects on a module."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import is_dataclass
from itertools import chain, compress
from operator import attrgetter, is_, itemgetter
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from membench.core.errors import ModuleChanged, UnsupportedModel
from membench.core.random_operators import forked_random_state
from membench.core.torch_internals import MODULE_ATTRIBUTES, WEIGHT_HOOKS, module_hooks, module_members

_MODE, _IS_TRAINED = attrgetter("training"), attrgetter("requires_grad")
PLAIN = (bool, int, float, str)
"""Types of attributes whose values can be compared."""
_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_CONTAINERS = (list, tuple, dict)
_NAMESPACES = (SimpleNamespace, Namespace)
_ABSENT = object()


class ModuleState:
    """The modes, layers, weights, buffers, hooks and numbers with which a module and its loss were captured.

    The values of tensors and their addresses may change. The set of tensors and the computation may not: the step would
    go on computing what the module no longer does. Functions count as numbers do, and so do both in lists, tuples, dicts and
    configurations, except what is appended to a list, as notes are. Of attributes with a leading underscore, those count that
    belong to a property.

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
        seen: set[int] = set()
        self._earlier_numbers = [
            each for path, owner in owners for each in _numbers_within(path, *_public(owner), seen)
        ]
        self._attributes = [(itemgetter(*numbers), holder) for _, holder, numbers in self._earlier_numbers]
        self._numbers = [itemgetter(*numbers)(numbers) for _, _, numbers in self._earlier_numbers]
        self._weights = dict(module.named_parameters()) if loss is not None else {}
        self._trained = [weight.requires_grad for weight in self._weights.values()]
        check_gradient_hooks(compress(self._weights.items(), self._trained))

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
        check_gradient_hooks(compress(self._weights.items(), self._trained))

    def _held_now(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._members)))

    def _has_other_numbers(self) -> bool:
        try:
            return self._numbers_now() != self._numbers and self._changed_number() is not None
        except (LookupError, RuntimeError, ValueError):
            return True  # one was deleted, or is an array, which has no single truth value

    def _changed_number(self) -> tuple[str, Any, Any, Any] | None:
        """Return the first that differs: path, name, and its values now and at the capture."""
        return next(
            (
                (path, name, now, number)
                for path, holder, numbers in self._earlier_numbers
                for name, number in numbers.items()
                if _differs(now := _item(holder, name), number)
            ),
            None,
        )

    def _numbers_now(self) -> list[Any]:
        return [numbers_of(holder) for numbers_of, holder in self._attributes]

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
        where = f"[{name}]" if isinstance(name, int) else name
        raise ModuleChanged(
            f"{_layer(path)} has {where}={now!r}, but had {then!r} when the step was captured; compile again, or put a "
            "value that changes into a buffer or a target"
        )

    def _refuse_freezing(self) -> NoReturn:
        trained = zip(self._weights.items(), self._trained, strict=True)
        name, was_trained = next((n, was) for (n, weight), was in trained if weight.requires_grad is not was)
        now, then = ("frozen", "trained") if was_trained else ("trained", "frozen")
        raise ModuleChanged(
            f"weight {name!r} is {now}, but was {then} when the step was captured; compile again"
        )


def check_gradient_hooks(weights: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse weights whose gradient has a hook: a step computes it, but hooks are called by autograd.

    Raises:
        UnsupportedModel: names the weight.
    """
    trained = list(weights)
    for hooks in WEIGHT_HOOKS:
        if name := next((name for name, weight in trained if hooks(weight)), None):
            raise UnsupportedModel(
                name,
                "its gradient has a hook, which a compiled step does not call",
                "remove the hook and change .grad after the step",
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
        with forked_random_state(device):
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


_Numbers = tuple[str, Any, dict[Any, Any]]
"""Where they are, the dict, list or tuple that holds them, and the numbers by their key."""


def _public(owner: object) -> tuple[Any, dict[str, Any]]:
    """Return an object's dict of attributes, and those that it may compute with."""
    kept = {
        name: value
        for name, value in own_attributes(owner).items()
        if not name.startswith("_") or isinstance(getattr(type(owner), name[1:], None), property)
    }
    return getattr(owner, "__dict__", {}), kept


def _numbers_within(path: str, holder: Any, items: dict[Any, Any], seen: set[int]) -> Iterator[_Numbers]:
    """Yield what a dict, list or tuple holds that is computed with, and what containers and configurations in it hold.

    Containers of nothing but numbers are copied, and others are numbers of their own.

    Args:
        seen: identities of holders that were yielded already, to which this one's is added.
    """
    if not items or id(holder) in seen:
        return
    seen.add(id(holder))
    numbers = {}
    for key, value in items.items():
        if _is_plain(value):
            numbers[key] = deepcopy(value)
        elif type(value) in _CONTAINERS:
            numbers[key] = value
            inner = value if isinstance(value, dict) else dict(enumerate(value))
            yield from _numbers_within(_joined(path, key), value, inner, seen)
        elif _is_configuration(value):
            numbers[key] = value
            yield from _numbers_within(_joined(path, key), *_public(value), seen)
    if numbers:
        yield path, holder, numbers


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _item(holder: Any, key: Any) -> Any:
    try:
        return holder[key]
    except LookupError:
        return None


def _differs(now: Any, then: Any) -> bool:
    if not _is_plain(then):
        return now is not then
    if type(now) is not type(then):
        return True
    return bool((now[: len(then)] if isinstance(then, list) else now) != then)


def _is_configuration(value: Any) -> bool:
    """Return whether a value is an object that keeps options: a dataclass, a namespace, or a configuration of transformers."""
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    return is_dataclass(value) or isinstance(value, _NAMESPACES) or type(value).__name__.endswith("Config")


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a string or a function, or a container of such and of None."""
    if type(value) not in _CONTAINERS:
        return type(value) in PLAIN or type(value) in _FUNCTIONS
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return all(item is None or _is_plain(item) for _, item in items)


def own_attributes(owner: object) -> dict[str, Any]:
    """Return an object's attributes except those that torch keeps in every module."""
    return {
        name: value for name, value in getattr(owner, "__dict__", {}).items() if name not in MODULE_ATTRIBUTES
    }


def _layer(path: str) -> str:
    return f"layer {path!r}" if path else "the module"
