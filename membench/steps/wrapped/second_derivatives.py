"""Derivatives of a wrapped module's gradients: it runs again in plain PyTorch, which records them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from membench.capture.capture import CapturedStep
from membench.core.errors import MembenchError
from membench.core.graph.call import Value
from membench.core.graph.task_graph import Kind, Phase
from membench.core.libraries.random_operators import forked_random_state, random_state, set_random_state
from membench.core.libraries.torch_internals import tensor_version, tree_flatten, tree_leaves
from membench.core.step.arguments import call_with
from membench.core.step.opened import opened
from membench.core.step.workload import Workload

_log = logging.getLogger("membench")


@dataclass(frozen=True)
class Noted:
    """What the module computed with in a call.

    Attributes:
        leaves: leaves of the arguments; for tensors, weak references, so that a call holds no memory for this.
        versions: how often tensors of the caller and of the module had been overwritten.
        random_state: state of torch's generator before the call; None if the module draws no number.
    """

    leaves: tuple[Any, ...]
    versions: tuple[int, ...]
    random_state: torch.Generator | Tensor | None


class SecondDerivatives:
    """Computes a call's gradients with a history, for ``create_graph=True``.

    Args:
        workload: the call's workload; its tensors need no memory.
        captured: capture of the workload.
        asked: positions of the arguments that get a gradient.
        trained: weights that get one.
        outputs: values of the graph, in the order in which a call's outputs have gradients.
    """

    def __init__(
        self,
        workload: Workload,
        captured: CapturedStep,
        asked: Sequence[int],
        trained: Sequence[Tensor],
        outputs: Sequence[Value],
        device: torch.device,
    ) -> None:
        self._module, self._precision, self._device = workload.module, workload.precision, device
        self._structure = tree_flatten(workload.inputs)[1]
        self._asked, self._trained, self._outputs = tuple(asked), tuple(trained), tuple(outputs)
        self._made = tree_leaves(captured.graph.output)
        forward = [task for task in captured.graph.tasks if task.phase is Phase.FORWARD]
        self._draws = any(task.random for task in forward)
        changed = {block for task in forward for block in task.writes}.intersection(captured.buffers.values())
        buffers = [(buffer, captured.buffers[name] in changed) for name, buffer in self._module.named_buffers()]
        self._changed = [buffer for buffer, is_changed in buffers if is_changed]
        self._unchanged = [*self._module.parameters(), *(buffer for buffer, is_changed in buffers if not is_changed)]
        self._uses_what_it_changes = any(
            task.kind is not Kind.BATCH_NORM
            and changed.intersection(task.reads)
            and not changed.issuperset(task.writes)
            for task in forward
        )
        self._is_told = False

    def note(self, leaves: Sequence[Any]) -> Noted:
        """Return what a call is about to compute with."""
        tensors = (leaf for leaf in leaves if isinstance(leaf, Tensor))
        return Noted(
            tuple([ref(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]),
            tuple(map(tensor_version, (*tensors, *self._unchanged))),
            _random_state(self._device) if self._draws else None,
        )

    def gradients(self, noted: Noted, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of inputs and weights, with a history.

        Args:
            gradients: gradients of the outputs; None where the caller's loss does not depend on one.

        Raises:
            MembenchError: an argument was dropped or overwritten since the call, or the module's buffers change its
                output.
        """
        leaves = self._leaves(noted)
        if not self._is_told:
            self._is_told = True
            _log.warning(
                "create_graph=True: %s runs once more in plain PyTorch, without a strategy, since derivatives of its "
                "gradients are asked for; what that keeps is not part of the predicted memory",
                type(self._module).__name__,
            )
        with self._as_before(noted):
            output = call_with(self._module.forward, self._structure.unflatten(leaves))
        leaves_made = zip(self._made, tree_leaves(opened(output)), strict=True)
        made = {value: tensor for value, tensor in leaves_made if isinstance(value, Value)}
        pairs = [
            (made[value], gradient)
            for value, gradient in zip(self._outputs, gradients, strict=True)
            if gradient is not None and made[value].requires_grad
        ]
        return list(
            torch.autograd.grad(
                [tensor for tensor, _ in pairs],
                [*(leaves[position] for position in self._asked), *self._trained],
                [gradient for _, gradient in pairs],
                create_graph=True,
                allow_unused=True,
            )
        )

    def _leaves(self, noted: Noted) -> list[Any]:
        """Return the arguments of the call, if they are what they were."""
        if self._uses_what_it_changes:
            raise MembenchError(
                "create_graph=True asks for derivatives of a wrapped module's gradients, for which it runs once more; "
                "its buffers change in each run and its output with them; call the module that was wrapped: it has "
                "the same weights"
            )
        leaves = [leaf() if isinstance(leaf, ref) else leaf for leaf in noted.leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if len(tensors) < sum(isinstance(leaf, ref) for leaf in noted.leaves):
            raise MembenchError(
                "create_graph=True asks for derivatives of a wrapped module's gradients, for which it runs once more, "
                "and an argument of that call is gone; keep a reference to each"
            )
        if noted.versions != tuple(map(tensor_version, (*tensors, *self._unchanged))):
            raise MembenchError(
                "create_graph=True asks for derivatives of a wrapped module's gradients, for which it runs once more, "
                "and an argument, weight or buffer has been overwritten since its call; ask before that"
            )
        return leaves

    @contextmanager
    def _as_before(self, noted: Noted) -> Iterator[None]:
        """Compute as in the call: its random numbers and autocast; buffers are left as they are."""
        kind = self._device.type
        cast_to = self._precision.autocast_dtype if self._precision else None
        buffers = [(buffer, buffer.clone()) for buffer in self._changed]
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(torch.autocast(kind, dtype=cast_to, enabled=cast_to is not None))
            if noted.random_state is not None:
                stack.enter_context(forked_random_state(self._device))
                _set_random_state(noted.random_state, self._device)
            yield
        for buffer, before in buffers:
            buffer.data.copy_(before)  # autograd has saved it, without use for its contents


def _random_state(device: torch.device) -> torch.Generator | Tensor:
    """Return the generator's state in memory that the device's allocator, and the schedule, do not count."""
    return torch.default_generator.clone_state() if device.type == "cpu" else random_state(device.type)


def _set_random_state(state: torch.Generator | Tensor, device: torch.device) -> None:
    set_random_state(state.get_state() if isinstance(state, torch.Generator) else state, device.type)
