"""An optimizer's update, captured: its parts, their cost and their temporaries, and the states of each weight."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.capture.operation import Layout
from membench.capture.trace import ANY_GPU
from membench.capture.update.optimizer_step import Captured, OptimizerStep
from membench.core.errors import MembenchError
from membench.core.graph.call import Value
from membench.core.graph.task_graph import Kind, TaskGraph
from membench.core.libraries.one_thread import CAPTURING
from membench.core.step.optimizer import Gradients, Update, UpdateTask, WeightUpdate

SMALLEST_PART = 1 / 256
"""A part of an update has at least this share of the weights: smaller layers are updated with their neighbours."""

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
        self, by: WeightUpdate, module: nn.Module | None = None, device: torch.device | AnyGpu = ANY_GPU
    ) -> None:
        self.name = by.name
        self._by: WeightUpdate | None = by
        self._device = torch.device("cuda", 0) if isinstance(device, AnyGpu) else device
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
            capture = _Capture(self._by, self._held, layouts, self._device)
            with CAPTURING:
                self._update = _captured(capture, self._by, layouts)
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


class _Capture:
    """Captures an optimizer's steps over some of its weights.

    Args:
        by, held, device: see `OptimizerStep`.
        layouts: layouts of all weights with a gradient, by name.

    Attributes:
        kinds: kinds of these weights.
    """

    def __init__(
        self,
        by: WeightUpdate,
        held: Mapping[str, nn.Parameter] | None,
        layouts: Mapping[str, Layout],
        device: torch.device,
    ) -> None:
        self._by, self._held, self._layouts, self._device = by, held, layouts, device
        self.kinds = {name: (layout, _group_of(by.optimizer, held, name)) for name, layout in layouts.items()}

    def step(self, names: list[str]) -> Captured:
        """Return the update by a step over some weights."""
        return OptimizerStep(self._by, self._held, {name: self._layouts[name] for name in names}, self._device).run()

    def step_on_cpu(self, names: list[str]) -> Captured:
        """Return the update by a step over some weights where they are in host memory."""
        cpu = torch.device("cpu")
        layouts = {name: self._layouts[name]._replace(device=cpu) for name in names}
        return OptimizerStep(self._by, self._held, layouts, cpu, fused=True).run()

    def part(self, names: list[str]) -> Captured:
        """Return the update by a step over some weights, as a task of each kind over all of them."""
        captured = self.step(names)
        merged = [replace(task, weights=tuple(names)) for task in _merged(captured.tasks)]
        return self.with_cpu_bytes(captured._replace(tasks=merged))

    def with_cpu_bytes(self, captured: Captured) -> Captured:
        """Return an update with the memory that it moves on the CPU, or where it cannot step there, on the device."""
        try:
            on_cpu = self.step_on_cpu(list(captured.states)).tasks
        except MembenchError:
            on_cpu = captured.tasks
        tasks = []
        for task in captured.tasks:
            like, like_on_cpu = (
                [each for each in found if (each.kind, each.uses_gradients) == (task.kind, task.uses_gradients)]
                for found in (captured.tasks, on_cpu)
            )
            moved_bytes, cpu_bytes = (
                sum(each.moved_bytes + each.host_bytes for each in found) for found in (like, like_on_cpu)
            )
            share = (task.moved_bytes + task.host_bytes) / max(1, moved_bytes)
            tasks.append(replace(task, cpu_moved_bytes=round(share * cpu_bytes)))
        return captured._replace(tasks=tasks)


def _captured(capture: _Capture, by: WeightUpdate, layouts: Mapping[str, Layout]) -> Update:
    kinds = capture.kinds
    if by.in_backward:
        whole = divided = _part_by_part(capture.part, kinds, [[name] for name in kinds])
    else:
        whole = _one_by_one(capture.step, kinds) or capture.step(list(kinds))
        divided = _part_by_part(capture.part, kinds, _groups(layouts)) if whole.is_divisible else whole
        if divided.states != whole.states or divided is whole:
            whole = divided = capture.with_cpu_bytes(whole)
    if by.gradients is Gradients.KEPT:
        is_divided = divided is not whole
        whole = _zeroing(whole, layouts)
        divided = _zeroing(divided, layouts) if is_divided else whole
    parts = () if divided is whole else tuple(divided.tasks)
    return Update(tuple(whole.tasks), whole.states, by.gradients, by.in_backward, parts)


def _part_by_part(capture: Callable[[list[str]], Captured], kinds: Kinds, groups: Iterable[list[str]]) -> Captured:
    """Return the update by an optimizer's steps over groups of weights in turn; like groups are captured once."""
    tasks: list[UpdateTask] = []
    states: dict[str, dict[str, int]] = {}
    found: dict[Any, tuple[list[str], Captured]] = {}
    for names in groups:
        like = tuple(kinds[name] for name in names)
        if like not in found:
            found[like] = names, capture(names)
        captured_names, captured = found[like]
        own = dict(zip(captured_names, names, strict=True))
        tasks += [replace(task, weights=tuple(own[name] for name in task.weights)) for task in captured.tasks]
        states |= {own[name]: of_weight for name, of_weight in captured.states.items()}
    return Captured(tasks, states, is_divisible=True)


def _groups(layouts: Mapping[str, Layout]) -> list[list[str]]:
    """Return the weights in groups of a layer each; small layers join the next ones."""
    least_bytes = SMALLEST_PART * sum(map(_size_bytes, layouts.values()))
    layers: dict[str, list[str]] = {}
    for name in layouts:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    groups: list[list[str]] = []
    group: list[str] = []
    for names in layers.values():
        group += names
        if sum(_size_bytes(layouts[name]) for name in group) >= least_bytes:
            groups.append(group)
            group = []
    if not groups:
        return [group]
    groups[-1] += group
    return groups


def _merged(tasks: list[UpdateTask]) -> list[UpdateTask]:
    """Return one task for each kind, in the order of the first ones; they run one after another."""
    merged: dict[tuple[Kind, bool], UpdateTask] = {}
    for task in tasks:
        kind = task.kind, task.uses_gradients
        first = merged.get(kind)
        merged[kind] = task if first is None else _both(first, task)
    return list(merged.values())


def _both(first: UpdateTask, then: UpdateTask) -> UpdateTask:
    return replace(
        first,
        states=first.states | then.states,
        operations=first.operations + then.operations,
        moved_bytes=first.moved_bytes + then.moved_bytes,
        host_bytes=first.host_bytes + then.host_bytes,
        workspace_bytes=max(first.workspace_bytes, then.workspace_bytes),
        launches=first.launches + then.launches,
    )


def _one_by_one(capture: Callable[[list[str]], Captured], kinds: Kinds) -> Captured | None:
    """Return the update of many weights by that of few, if the optimizer updates one after another in their order.

    A weight's temporaries are those of the first weight of its kind behind one of the same kind: variables still hold
    some of the weight before.
    """
    pairs = {name: (before and kinds[before], kinds[name]) for before, name in pairwise(["", *kinds])}
    like = {pair: name for name, pair in reversed(pairs.items())}
    first = set(like.values())
    few = [name for name, following in pairwise([*kinds, ""]) if name in first or following in first]
    if 2 * len(few) > len(kinds):
        return None
    captured = capture(few)
    tasks, states = captured.tasks, captured.states
    own: dict[str, list[UpdateTask]] = {}
    for task in tasks:
        own.setdefault(task.weights[0], []).append(task)
    if list(own) != few or any(len(task.weights) > 1 for task in tasks):
        return None
    every = [replace(task, weights=(name,)) for name, pair in pairs.items() for task in own[like[pair]]]
    return Captured(every, {name: states[like[pair]] for name, pair in pairs.items()}, captured.is_divisible)


def _group_of(optimizer: Any, held: Mapping[str, nn.Parameter] | None, name: str) -> int:
    """Return the number of the group of options that a weight belongs to."""
    if held is None:
        return 0
    groups = enumerate(optimizer.param_groups)
    return next(number for number, group in groups if any(each is held[name] for each in group["params"]))


def _zeroing(captured: Captured, layouts: Mapping[str, Layout]) -> Captured:
    """Return an update behind which the gradients are zeroed."""
    tasks = []
    for task in captured.tasks:
        zeroed_bytes = 0
        if task.uses_gradients and task.kind is Kind.OTHER:
            zeroed_bytes = sum(_size_bytes(layouts[name]) for name in task.weights)
        moved_bytes, cpu_bytes = task.moved_bytes + zeroed_bytes, task.cpu_moved_bytes + zeroed_bytes
        tasks.append(replace(task, moved_bytes=moved_bytes, cpu_moved_bytes=cpu_bytes))
    return captured._replace(tasks=tasks)


def _size_bytes(layout: Layout) -> int:
    return torch.Size(layout.shape).numel() * layout.dtype.itemsize
