"""A step of an optimizer on weights, gradients and states without data.

    optimizer = AdamW(fake weights)       fake gradients
    optimizer.step()                      makes the states
    optimizer.step()                      recorded, operator by operator

The operators on one weight, or on several at once, are a part of the update. Its workspace is the most that its
temporaries, and those that earlier parts have left in variables, hold.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from membench.capture.operation import Layout, layout_of
from membench.capture.update.update_recorder import UpdateOperator, UpdateRecorder, state_tensors, tensors_of
from membench.capture.update.update_surroundings import as_on_a_gpu, compiled_in_one_kernel, managed_as_host_memory
from membench.core.errors import MembenchError, one_line
from membench.core.graph.task_graph import Kind
from membench.core.libraries.torch_contexts import foreach_types
from membench.core.libraries.torch_fake_tensors import trace_fakes
from membench.core.libraries.torch_internals import FakeTensor, tree_leaves
from membench.core.step.optimizer import (
    UpdateTask,
    WeightUpdate,
    copy_of_optimizer,
    differ,
    made_optimizer,
    options_and_attributes,
    steps_as_its_class,
)


class Captured(NamedTuple):
    """A captured update.

    Attributes:
        tasks: in order.
        states: bytes of each state on the device by its name, by weight.
        is_divisible: whether each weight is updated by itself, so that the weights may be in steps of their own.
    """

    tasks: list[UpdateTask]
    states: dict[str, dict[str, int]]
    is_divisible: bool


_FUSED_ON_THE_CPU = (torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers whose ``fused=True`` has a kernel for the CPU."""

_EMA = "ema"


class OptimizerStep:
    """One optimizer over some weights, made and stepped on fake tensors.

    Args:
        by, device: see `membench.capture.update.captured_update.CapturedUpdate`.
        held: weights of an instance, by name.
        layouts: layouts of the weights that have a gradient, by name.
        fused: update by fused kernels where the class has them on the CPU.
    """

    def __init__(
        self,
        by: WeightUpdate,
        held: Mapping[str, nn.Parameter] | None,
        layouts: Mapping[str, Layout],
        device: torch.device,
        *,
        fused: bool = False,
    ) -> None:
        self._by, self._held, self._device, self._fused = by, held, device, fused
        self._mode = trace_fakes()
        self._recorder = UpdateRecorder(self._mode, device)
        self._weights = {name: nn.Parameter(layout.fake_tensor(self._mode)) for name, layout in layouts.items()}
        for name, weight in self._weights.items():
            weight.grad = layouts[name].fake_tensor(self._mode)
        self._states: dict[str, dict[str, int]] = {name: {} for name in layouts}
        self._host_bytes = dict.fromkeys(layouts, 0)
        self._owners: dict[int, tuple[str, str]] = {}  # a weight and its state, by block

    def run(self) -> Captured:
        """Return the update.

        Raises:
            MembenchError: see `membench.capture.update.captured_update.CapturedUpdate`.
        """
        with ExitStack() as stack:
            for surrounding in (
                managed_as_host_memory(),
                as_on_a_gpu(),
                foreach_types(FakeTensor),
                compiled_in_one_kernel(self._recorder),
                self._mode,
                self._recorder,
            ):
                stack.enter_context(surrounding)
            try:
                optimizer = self._made()
                optimizer.step()
                self._find_states(optimizer)
                before = options_and_attributes(optimizer)
                tasks = self._parts(optimizer.step)
                is_changed = differ(before, options_and_attributes(optimizer))
                if self._by.ema:
                    tasks += self._averaging()
            except MembenchError:
                raise
            except Exception as error:
                raise MembenchError(
                    f"the update of {self._by.name} cannot be captured ({one_line(error)}); choose another optimizer "
                    "or other options of it, or leave optimizer out"
                ) from error
        given = self._by.optimizer if isinstance(self._by.optimizer, torch.optim.Optimizer) else optimizer
        is_divisible = not (is_changed or self._recorder.mixes_weights) and steps_as_its_class(given)
        return Captured(tasks, self._states, is_divisible)

    def _made(self) -> torch.optim.Optimizer:
        """Return the optimizer over the fake weights."""
        if isinstance(self._by.optimizer, torch.optim.Optimizer):
            made = self._copied(self._by.optimizer)
        else:
            made = made_optimizer(self._by, self._weights.values())
        if self._fused and isinstance(made, _FUSED_ON_THE_CPU):
            for group in made.param_groups:
                group.update(fused=True, foreach=False)
        return made

    def _copied(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return a copy of an instance over the fake weights."""
        assert self._held is not None
        replaced: dict[int, Any] = {}
        for name, weight in self._held.items():
            if name in self._weights:
                replaced[id(weight)] = self._weights[name]
                replaced |= self._replaced_states(weight, self._weights[name].dtype)
            else:
                replaced[id(weight)] = self._like(weight, weight.dtype)
        stateless = [weight for name, weight in self._held.items() if name not in self._weights]
        copied = copy_of_optimizer(optimizer, replaced, stateless)
        if self._by.in_backward:
            for group in copied.param_groups:
                group["params"] = [each for each in group["params"] if each.grad is not None]
            copied.param_groups = [group for group in copied.param_groups if group["params"]]
        return copied

    def _replaced_states(self, weight: nn.Parameter, dtype: torch.dtype) -> dict[int, Any]:
        """Return fake tensors in place of a weight's states, by their id; those of several tensors are made anew.

        Args:
            dtype: dtype of the weight in the step.
        """
        state = self._by.optimizer.state.get(weight, {})  # type: ignore[union-attr]
        leaves = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
        if any(inner is not leaf for leaf in leaves for inner in tensors_of(leaf)):
            return {id(state): {}}
        return {
            id(leaf): self._like(leaf, dtype if leaf.dtype is weight.dtype else leaf.dtype)
            for leaf in leaves
            if leaf.numel() > 1 or weight.numel() == 1  # otherwise a number such as that of the steps
        }

    def _like(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a fake tensor on the device in place of one of an instance."""
        layout = layout_of(tensor)._replace(dtype=dtype, offset=0, device=self._device)
        return layout.fake_tensor(self._mode)

    # ---- states -------------------------------------------------------------------------------------

    def _find_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the states of each weight; one that several have belongs to the first, and to no part of the update."""
        names: dict[Any, str] = {weight: name for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            assert weight.grad is not None
            self._own(name, "", weight)
            self._own(name, "", weight.grad)
        for owner, state in optimizer.state.items():
            name = names.get(owner, next(iter(self._weights)))
            for key, tensor in state_tensors(state):
                self._own(name, key, tensor)

    def _own(self, name: str, state: str, tensor: Tensor) -> None:
        block = self._recorder.block_of(tensor)
        if block is None:
            if isinstance(tensor, FakeTensor):
                self._host_bytes[name] += tensor.untyped_storage().nbytes()
        elif block not in self._owners:
            self._owners[block] = name, state
            if state:
                self._states[name][state] = tensor.untyped_storage().nbytes()
        elif self._owners[block][0] != name:
            self._owners[block] = "", state

    # ---- parts --------------------------------------------------------------------------------------

    def _averaging(self) -> list[UpdateTask]:
        """Return the update of the averages."""
        averages = {name: torch.empty_like(weight) for name, weight in self._weights.items()}
        for name, average in averages.items():
            self._own(name, _EMA, average)
        weights = [weight.detach() for weight in self._weights.values()]
        average_by = partial(get_ema_multi_avg_fn(), list(averages.values()), weights, 1)
        return [replace(task, uses_gradients=False) for task in self._parts(average_by)]

    def _parts(self, step: Callable[[], object]) -> list[UpdateTask]:
        """Return what a step does: a part for each set of weights on which operators run."""
        self._recorder.begin({block: name for block, (name, _) in self._owners.items()})
        step()
        operators, held_bytes = self._recorder.recorded, self._recorder.held_bytes()
        if held_bytes[-1] > 0:
            raise MembenchError(
                f"{self._by.name} holds {held_bytes[-1]:,} bytes more after each update, so the step has no peak that "
                "could be planned; leave optimizer out, and update the weights after the step"
            )
        owners = self._owners
        used = [{owners[b] for b in (*each.read_bytes, *each.written_bytes) if b in owners} for each in operators]
        ends = _ends([{name for name, _ in each if name} for each in used])
        tasks: list[UpdateTask] = []
        for start, end in zip([0, *ends], ends, strict=False):
            touched = set().union(*used[start:end])
            updated = {name for name, _ in touched}
            names = tuple(name for name in self._weights if name in updated)
            states = frozenset(state for _, state in touched if state)
            part = UpdateTask(
                names,
                states,
                host_bytes=sum(self._host_bytes[name] for name in names),
                workspace_bytes=max(0, *held_bytes[start:end]),
            )
            tasks += _priced(part, operators[start:end])
        return tasks


def _ends(used: Sequence[set[str]]) -> list[int]:
    """Return the positions behind the parts of a sequence of operators, of which one alone uses a weight.

    Args:
        used: weights of each operator.
    """
    last = {name: position for position, names in enumerate(used) for name in names}
    ends, open_until = [], -1
    for position, names in enumerate(used):
        if names and position > open_until >= 0:
            ends.append(position)
        open_until = max([open_until, *(last[name] for name in names)])
    return [*ends, len(used)] if open_until >= 0 else []


def _priced(part: UpdateTask, operators: Sequence[UpdateOperator]) -> Iterator[UpdateTask]:
    """Yield the part's products of matrices as a task, if it has any, and its other operators as another."""
    for kind in (Kind.LINEAR, Kind.OTHER):
        alike = [each for each in operators if each.kind is kind]
        if alike:
            yield replace(
                part,
                kind=kind,
                precision=alike[0].precision,
                operations=sum(each.operations for each in alike),
                moved_bytes=sum(each.moved_bytes for each in alike),
                host_bytes=part.host_bytes if kind is Kind.OTHER else 0,
                launches=sum(each.launches for each in alike),
            )
