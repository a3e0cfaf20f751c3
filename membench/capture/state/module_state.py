"""The structure of a module that a captured step depends on, and steps without side effects on a module."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from membench.capture.state.places import Places
from membench.core.errors import ModuleChanged, UnsupportedModel
from membench.core.libraries.random_operators import forked_random_state
from membench.core.libraries.torch_internals import HOOKS_OF_EVERY_MODULE, WEIGHT_HOOKS, module_hooks, module_members

_IS_TRAINED = attrgetter("requires_grad")


class ModuleState:
    """The modes, layers, weights, buffers and hooks with which a module and its loss were captured.

    The values of tensors and their addresses may change. The set of tensors and the computation may not: the step would
    go on computing what the module no longer does.

    Args:
        module: as it was captured.
        loss: as it was captured; None in a step that computes none: whether its weights are frozen is not checked.
        has_own_hooks: hooks of the module itself belong to the step; see `Workload`.

    Attributes:
        layers: those of the module, and of a loss that is one, by path.

    Raises:
        UnsupportedModel: a weight has a hook on its gradient.
    """

    def __init__(self, module: nn.Module, loss: Callable[..., Any] | None, *, has_own_hooks: bool = True) -> None:
        self.layers = list(module.named_modules())
        if isinstance(loss, nn.Module):
            self.layers += loss.named_modules(prefix="loss")
        self._modes, self._members, self._hooks = Places(), Places(), Places()
        for path, layer in self.layers:
            owner = f"layer {path!r}" if path else "the module"
            self._modes.add(owner, vars(layer), ("training",))
            children, *tensors = module_members(layer)
            self._members.add_items(owner, children, dict.values)
            if children:
                self._members.add_items(f"the layers' order in {owner}", children, dict.keys)
            for members in tensors:
                if members:
                    self._members.add(owner, members, tuple(members), is_sized=True)
                else:
                    self._members.add_items(owner, members, dict.values)
            for hooks in module_hooks(layer) if has_own_hooks or layer is not module else ():
                self._hooks.add_items(owner, hooks, dict.values)
        for hooks in HOOKS_OF_EVERY_MODULE:
            self._hooks.add_items("every module", hooks, _hooks_of_program)
        self._places = self._modes, self._members, self._hooks
        for places in self._places:
            places.remember()
        weights = dict(module.named_parameters()) if loss is not None else {}
        self._trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        self._frozen = {name: weight for name, weight in weights.items() if not weight.requires_grad}
        self._default_dtype = torch.get_default_dtype()
        check_gradient_hooks(self._trained)

    def check(self) -> None:
        """Refuse a module that differs from the captured one; takes up to some microseconds per layer.

        Raises:
            ModuleChanged: names the first layer or weight that differs, and the difference.
            UnsupportedModel: a weight has a hook on its gradient.
        """
        if not all(places.are_unchanged() for places in self._places):
            self._refuse_structure()
        if not all(map(_IS_TRAINED, self._trained.values())) or any(map(_IS_TRAINED, self._frozen.values())):
            self._refuse_freezing()
        if torch.get_default_dtype() is not self._default_dtype:
            raise ModuleChanged(
                f"torch's default dtype was {self._default_dtype} when the step was captured, and is "
                f"{torch.get_default_dtype()} now; set it back, or compile the step again"
            )
        check_gradient_hooks(self._trained)

    def _refuse_structure(self) -> None:
        for change in self._modes.changes():
            now, then = ("evaluation", "training") if change.then else ("training", "evaluation")
            raise ModuleChanged(
                f"{change.owner} is in {now} mode, but the step was captured in {then} mode; switch the module back, "
                "or compile a step for each mode"
            )
        for change in self._members.changes():
            raise ModuleChanged(
                f"{change.name!r} of {change.owner} is not the object that the step was captured with; change values "
                "in place, or compile again"
            )
        for change in self._hooks.changes():
            raise ModuleChanged(
                f"the hooks of {change.owner} have changed since the step was captured, which is when hooks run; "
                f"compile again"
            )

    def _refuse_freezing(self) -> NoReturn:
        name = next((name for name, weight in self._trained.items() if not weight.requires_grad), None)
        now, then = ("frozen", "trained") if name else ("trained", "frozen")
        name = name or next(name for name, weight in self._frozen.items() if weight.requires_grad)
        raise ModuleChanged(f"weight {name!r} is {now}, but was {then} when the step was captured; compile again")


def _hooks_of_program(hooks: dict[int, Any]) -> list[Any]:
    """Return hooks of every module without those that another thread's capture has put there for a while."""
    return [hook for hook in hooks.values() if not getattr(hook, "__module__", "").startswith("membench.")]


def check_gradient_hooks(weights: Mapping[str, Tensor]) -> None:
    """Refuse trained weights whose gradient has a hook: a step computes it, but hooks are called by autograd.

    Raises:
        UnsupportedModel: names the weight.
    """
    if any(any(map(hooks, weights.values())) for hooks in WEIGHT_HOOKS):
        raise UnsupportedModel(
            next(name for name, weight in weights.items() if any(hooks(weight) for hooks in WEIGHT_HOOKS)),
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
