"""An optimizer's update, captured: its parts, their cost and their temporaries, and the states of each weight."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from membench.capture.operation import Layout
from membench.capture.optimizer_step import Captured, OptimizerStep
from membench.capture.trace import ANY_GPU
from membench.core.call import Value
from membench.core.errors import MembenchError
from membench.core.optimizer import Gradients, Update, UpdateTask, WeightUpdate
from membench.core.task_graph import Kind, TaskGraph

Kinds = Mapping[str, Any]
"""What tells weights apart to an optimizer, their layout and their group of options, by name."""


class CapturedUpdate:
    """The update of a graph's weights by an optimizer, captured once.

    Args:
        by: the optimizer; an instance is left as it is.
        module: whose weights an instance updates.
        device: where the weights are.

    Raises:
        MembenchError: an instance updates other tensors.
    """

    def __init__(
        self, by: WeightUpdate, module: nn.Module | None = None, device: torch.device = ANY_GPU
    ) -> None:
        self.name = by.name
        self._by: WeightUpdate | None = by
        self._device = torch.device("cuda", 0) if device == ANY_GPU else device
        self._held = None
        if isinstance(by.optimizer, torch.optim.Optimizer):
            self._held = updated_weights(by.optimizer, module)
        self._update: Update | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the optimizer once its update is captured."""
        state = self.__dict__
        return state if self._update is None else {**state, "_by": None, "_held": None}

    def __call__(self, graph: TaskGraph) -> Update:
        """Return the update, which is the same for each number of samples.

        Raises:
            MembenchError: the optimizer cannot be made or stepped without data, or holds more after each step.
        """
        if self._update is None:
            assert self._by is not None
            layouts = {
                name: _layout(value, self._device)
                for name, value in graph.gradients
                if value is not None and (self._held is None or name in self._held)
            }
            if not layouts:
                raise MembenchError("the loss has no gradient for any weight of the optimizer")
            self._update = _captured(self._by, self._held, layouts, self._device)
        return self._update


def updated_weights(optimizer: torch.optim.Optimizer, module: nn.Module | None) -> dict[str, nn.Parameter]:
    """Return the weights of a module that an optimizer updates, by name.

    Raises:
        MembenchError: it updates other tensors.
    """
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    named = () if module is None else module.named_parameters()
    weights = {name: weight for name, weight in named if id(weight) in held}
    if len(weights) < len(held):
        raise MembenchError(
            "the optimizer updates tensors that are not weights of the module; make it of module.parameters()"
        )
    return weights


def _layout(gradient: Value, device: torch.device) -> Layout:
    """Return the layout of a weight and of its gradient."""
    meta = torch.empty_strided(gradient.shape, gradient.stride, device="meta")
    is_dense = meta.untyped_storage().nbytes() == meta.numel() * meta.itemsize
    stride = meta.stride() if is_dense else torch.empty(gradient.shape, device="meta").stride()
    return Layout(gradient.dtype, tuple(gradient.shape), stride, 0, device)


def _captured(
    by: WeightUpdate,
    held: Mapping[str, nn.Parameter] | None,
    layouts: Mapping[str, Layout],
    device: torch.device,
) -> Update:
    def capture(names: list[str]) -> Captured:
        return OptimizerStep(by, held, {name: layouts[name] for name in names}, device).run()

    kinds = {name: (layout, _group_of(by.optimizer, held, name)) for name, layout in layouts.items()}
    if by.in_backward:
        tasks, states = _alone(capture, kinds)
    else:
        tasks, states = _one_by_one(capture, kinds) or capture(list(kinds))
    if by.gradients is Gradients.KEPT:
        tasks = [_zeroing(task, layouts) for task in tasks]
    return Update(tuple(tasks), states, by.gradients, by.in_backward)


def _alone(capture: Callable[[list[str]], Captured], kinds: Kinds) -> Captured:
    """Return the update of weights of which each has an optimizer of its own."""
    tasks: list[UpdateTask] = []
    states: dict[str, dict[str, int]] = {}
    found: dict[Any, Captured] = {}
    for name, kind in kinds.items():
        if kind not in found:
            found[kind] = capture([name])
        own, [states[name]] = found[kind][0], found[kind][1].values()
        tasks += [replace(task, weights=(name,)) for task in own]
    return tasks, states


def _one_by_one(capture: Callable[[list[str]], Captured], kinds: Kinds) -> Captured | None:
    """Return the update of many weights by that of few, if the optimizer updates one after another in their order.

    A weight's temporaries are those of the first weight of its kind behind one of the same kind: variables still hold some of
    the weight before.
    """
    pairs = {name: (before and kinds[before], kinds[name]) for before, name in pairwise(["", *kinds])}
    like = {pair: name for name, pair in reversed(pairs.items())}
    first = set(like.values())
    few = [name for name, following in pairwise([*kinds, ""]) if name in first or following in first]
    if 2 * len(few) > len(kinds):
        return None
    tasks, states = capture(few)
    own: dict[str, list[UpdateTask]] = {}
    for task in tasks:
        own.setdefault(task.weights[0], []).append(task)
    if list(own) != few or any(len(task.weights) > 1 for task in tasks):
        return None
    every = [replace(task, weights=(name,)) for name, pair in pairs.items() for task in own[like[pair]]]
    return every, {name: states[like[pair]] for name, pair in pairs.items()}


def _group_of(optimizer: Any, held: Mapping[str, nn.Parameter] | None, name: str) -> int:
    """Return the number of the group of options that a weight belongs to."""
    if held is None:
        return 0
    groups = enumerate(optimizer.param_groups)
    return next(number for number, group in groups if any(each is held[name] for each in group["params"]))


def _zeroing(task: UpdateTask, layouts: Mapping[str, Layout]) -> UpdateTask:
    """Return a part of the update behind which its gradients are zeroed."""
    if not task.uses_gradients or task.kind is not Kind.OTHER:
        return task
    zeroed_bytes = sum(_size_bytes(layouts[name]) for name in task.weights)
    return replace(task, moved_bytes=task.moved_bytes + zeroed_bytes)


def _size_bytes(layout: Layout) -> int:
    return torch.Size(layout.shape).numel() * layout.dtype.itemsize
