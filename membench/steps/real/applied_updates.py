"""The updates of one schedule's steps: in time, or deferred and then pending from one call to the next.

    call 1    forward, backward                            nothing is pending yet
    call 2    deferred updates beside the forward pass, backward
    restore   deferred updates

While an update is pending, the caller must not read what it changes. Weights and states are then empty tensors, of
shape (0,), so that reading them is an error and never an old value. A failed step leaves pending what it has not
applied: a gradient's home is written again only behind its update.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from membench.backends.tensor_backend import TensorBackend
from membench.capture.update.update_recorder import state_tensors
from membench.core.errors import MembenchError
from membench.core.graph.call import Value
from membench.core.graph.task_graph import Task

Run = Callable[[Task, Callable[[Value], Tensor]], None]
"""Runs a task of the update, given the task and what returns a value's tensor."""


class AppliedUpdates:
    """Applies updates by a torch optimizer when their tasks run.

    A deferred one is applied with the options that the optimizer had when it became pending: a schedule of learning
    rates has changed them since.

    Args:
        run: applies one update.
        deferred: tasks of deferred updates by name, in order, each with the weights that it changes.
    """

    def __init__(
        self, run: Run, optimizer: torch.optim.Optimizer, deferred: Mapping[str, tuple[Task, Collection[nn.Parameter]]]
    ) -> None:
        self._run, self._optimizer, self._deferred = run, optimizer, deferred
        self._pending: dict[str, Task] = {}  # by name
        self._options: list[dict[str, Any]] = []
        self._hidden: list[tuple[Tensor, Tensor]] = []  # tensors of the caller and their contents

    def __call__(self, task: Task, tensor: Callable[[Value], Tensor]) -> None:
        """Apply an update; a deferred one only if it is pending."""
        if task.name not in self._deferred:
            self._run(task, tensor)
        elif self._pending.pop(task.name, None):
            with self._earlier_options():
                self._run(task, tensor)

    @property
    def has_deferred(self) -> bool:
        return bool(self._deferred)

    @property
    def are_pending(self) -> bool:
        return bool(self._pending)

    def defer(self) -> None:
        """Make the deferred updates pending, at the end of a step."""
        self._pending = {name: task for name, (task, _) in self._deferred.items()}
        self._options = deepcopy(_options_of(self._optimizer))

    def drop(self) -> None:
        """Give up what is pending."""
        self._pending.clear()
        self.__enter__()

    def finish(self, backend: TensorBackend) -> None:
        """Apply what is pending, between two steps, from the gradients in a backend's host memory."""
        self.__enter__()
        if self._pending:
            backend.restore()
        with torch.no_grad():
            for task in list(self._pending.values()):
                backend.run_between_steps(task)

    def __enter__(self) -> None:
        """Give the caller's tensors their contents, for a step."""
        for tensor, contents in self._hidden:
            tensor.data = contents
        self._hidden.clear()

    def __exit__(self, *_: object) -> None:
        """Empty what pending updates will change."""
        for name in self._pending:
            for weight in self._deferred[name][1]:
                for tensor in (weight, *dict(state_tensors(self._optimizer.state.get(weight, {}))).values()):
                    if tensor.numel():
                        self._hidden.append((tensor, tensor.data))
                        tensor.data = tensor.data.new_empty(0)

    def finish_before_reading(self, step: object, module: nn.Module, backend: TensorBackend) -> None:
        """Apply what is pending before states are saved or loaded, and when the step is dropped."""
        before = _BeforeReading(self, backend)
        hooks = (
            module.register_state_dict_pre_hook(before),
            module.register_load_state_dict_pre_hook(before),
            self._optimizer.register_state_dict_pre_hook(before),
            self._optimizer.register_load_state_dict_pre_hook(before),
        )
        finalize(step, _finish_and_remove, before, hooks).atexit = False

    @contextmanager
    def _earlier_options(self) -> Iterator[None]:
        now = _options_of(self._optimizer)
        try:
            for group, options in zip(self._optimizer.param_groups, self._options, strict=False):
                group.update(options)
            yield
        finally:
            for group, options in zip(self._optimizer.param_groups, now, strict=True):
                group.update(options)


class _BeforeReading:
    """A hook of a module and of an optimizer that applies pending updates."""

    def __init__(self, updates: AppliedUpdates, backend: TensorBackend) -> None:
        self._updates, self._backend = updates, backend

    def __call__(self, *_: Any) -> None:
        self._updates.finish(self._backend)

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled, with the module, as a hook that does nothing.

        Raises:
            MembenchError: updates are pending.
        """
        if self._updates.are_pending:
            raise MembenchError(
                "weights of the module wait for updates that its step has deferred; call restore() of the step before "
                "the module is copied or pickled"
            )
        return _NoHook, ()


class _NoHook:
    def __call__(self, *_: Any) -> None:
        """Do nothing."""


def _finish_and_remove(before: _BeforeReading, hooks: Iterable[RemovableHandle]) -> None:
    before()
    for hook in hooks:
        hook.remove()


def _options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups]
