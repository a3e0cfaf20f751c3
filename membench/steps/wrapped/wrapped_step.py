"""WrappedStep: a module's forward and backward pass under one schedule, around a loss that its caller computes.

    forward pass: the instructions up to the turn
    the caller's loss, on the outputs
    backward pass, when autograd reaches it: the instructions from the turn on, with the outputs' gradients

Each call has a backend of its own from its forward to its backward pass, so that several calls may wait for theirs.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from membench.backends.accelerator_memory import capacity_bytes
from membench.backends.real import real_backend
from membench.backends.tensor_backend import TensorBackend
from membench.capture.capture import CapturedStep
from membench.core.errors import MembenchError, OutOfMemory
from membench.core.graph.call import Value
from membench.core.graph.schedule import Compute, Schedule
from membench.core.graph.task_graph import RESULT_ROLES, TaskGraph
from membench.core.libraries.torch_contexts import is_batched
from membench.core.libraries.torch_internals import tree_leaves, tree_map_only
from membench.core.libraries.transforms import check_no_transform
from membench.core.step.opened import closed
from membench.core.step.stored import stored_buffers, stored_weights
from membench.core.step.workload import Workload
from membench.execution.executor import BoundSchedule
from membench.planning.memory.liveness import live_bytes
from membench.steps.real.bound_state import BoundState
from membench.steps.real.watched_state import WatchedState
from membench.steps.wrapped.second_derivatives import SecondDerivatives


class WrappedStep:
    """A captured forward pass, and the backward pass behind it, for calls with arguments of one shape.

    Args:
        workload: without a loss, placed for the schedule.
        captured: capture of the workload.
        schedule: validated.
        device: where it runs.
        capturing: held while a call of the module is captured, whose weights are others then.

    Attributes:
        predicted_peak_bytes: the peak of one call, with weights, inputs, outputs and the outputs' gradients; memory of
            the caller's loss, and of other calls that wait for their backward pass, is not included.
        waiting: number of calls that wait for their backward pass.
        second_derivatives: computes a call's gradients with a history.
    """

    def __init__(
        self,
        workload: Workload,
        captured: CapturedStep,
        schedule: Schedule,
        device: torch.device,
        capturing: AbstractContextManager[object],
    ) -> None:
        graph, module = schedule.graph, workload.module
        self.schedule = schedule
        self.predicted_peak_bytes = schedule.peak_bytes
        self.waiting = 0
        self._workload = workload
        self._captured = captured
        self._device = device
        self._capturing = capturing
        self._watched = WatchedState(workload, captured.recorded, has_own_hooks=False)
        weights = dict(module.named_parameters())
        self._of_module: dict[int, Tensor] = {
            **{captured.weights[name]: weight for name, weight in stored_weights(module).items()},
            **{captured.buffers[name]: buffer for name, buffer in stored_buffers(module).items()},
        }
        tensors = [position for position, block in enumerate(captured.inputs) if block is not None]
        of_inputs = zip(tensors, graph.input_gradients, strict=True)
        self._asked = {position: value for position, value in of_inputs if value is not None}
        self._trained = {weights[name]: value for name, value in graph.gradients if value is not None}
        self._gradients = (*self._asked.values(), *self._trained.values())
        made = (value for value in tree_leaves(graph.output) if isinstance(value, Value))
        returned = {block.index for block in graph.blocks if workload.trains and block.is_external}
        self._outputs = tuple(dict.fromkeys(value for value in made if value.block not in returned))
        self._read_later = _read_after_the_turn(schedule)
        self.second_derivatives = SecondDerivatives(
            workload, captured, list(self._asked), list(self._trained), self._outputs, device
        )
        self._idle: list[_Call] = []
        finalize(self, _close_all, self._idle)

    @property
    def backends(self) -> tuple[TensorBackend, ...]:
        """The backends of calls that have ended, which later calls use."""
        return tuple(call.backend for call in self._idle)

    @cached_property
    def held_bytes(self) -> int:
        """Bytes that a call holds while it waits for its backward pass, its outputs included."""
        return live_bytes(self.schedule)[self.schedule.turn - 1] - self.schedule.graph.external_bytes

    @cached_property
    def _reached(self) -> list[frozenset[int]]:
        """For each gradient the blocks of the outputs' gradients that it depends on."""
        return _dependence(self.schedule.graph, self._gradients)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Run the forward pass, and return what the module returns, with a history if the step trains.

        Args:
            leaves: leaves of the arguments, in the captured order, shapes, dtypes and layouts.

        Raises:
            ModuleChanged: the module, or what it reads of Python, has changed since the capture.
            StepOutdated: it has changed in a way that was not seen at once; see `WatchedState`.
            OutOfMemory: the device's memory is exhausted.
        """
        self._workload.check_gradients_are_allowed()
        with self._capturing:
            self._watched.check()
        start_s = time.perf_counter()
        if self.schedule.graph.output_gradients:
            tensors = (*(leaves[position] for position in self._asked), *self._trained)
            outputs = _Halves.apply(self, leaves, *tensors)
        else:
            call, outputs = self.begin(leaves)
            call.backward({})
            self._idle.append(call)
        self._watched.ran(time.perf_counter() - start_s)
        given = self._tensors_of_caller(leaves)
        made = dict(zip(self._outputs, outputs, strict=True))
        output = tree_map_only(
            Value, lambda value: made[value] if value in made else given[value.block], self.schedule.graph.output
        )
        return closed(output)

    def begin(self, leaves: Sequence[Any]) -> "tuple[_Call, list[Tensor]]":
        """Run a forward pass; return the call, which is to be ended or abandoned, and what the schedule has made."""
        with self._capturing:
            if not self._idle:
                self._idle.append(self._new_call())
            self._idle[-1].state.bind()
            call = self._idle.pop()
        return call, call.forward(leaves, self._outputs, self._read_later)

    def end(self, call: "_Call", gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run a backward pass, and return the gradients of inputs and weights.

        Args:
            gradients: gradients of the outputs; None where the caller's loss does not depend on one.
        """
        start_s = time.perf_counter()
        pairs = dict(self.schedule.graph.output_gradients)
        passed = zip(self._outputs, gradients, strict=True)
        given = {pairs[output]: gradient for output, gradient in passed if output in pairs}
        absent = {value.block for value, gradient in given.items() if gradient is None}
        call.backward({value.block: _as_captured(value, gradient, self._device) for value, gradient in given.items()})
        results = call.results(self._gradients)
        self._idle.append(call)
        self._watched.ran(time.perf_counter() - start_s)
        if absent:
            return [
                None if reached <= absent else result for reached, result in zip(self._reached, results, strict=True)
            ]
        return results

    def differentiable(self) -> list[bool]:
        """Return for each output of the schedule whether it has a gradient."""
        pairs = dict(self.schedule.graph.output_gradients)
        return [output in pairs for output in self._outputs]

    def tensors_read_later(self, leaves: Sequence[Any], outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors in the caller's hands that the backward pass reads: it must not run if one was overwritten."""
        made = {value.block: output for value, output in zip(self._outputs, outputs, strict=True)}
        held = self._tensors_of_caller(leaves) | made
        return [held[block] for block in self._read_later if block in held]

    def close(self) -> None:
        """Release threads and host memory of calls that have ended."""
        _close_all(self._idle)

    def _new_call(self) -> "_Call":
        backend = real_backend(self.schedule, self._device)
        state = BoundState(self.schedule.graph, backend, self._captured, self._workload.module)
        weights = set(self._captured.weights.values())  # bound with the module, also where one is an argument
        inputs = tuple([None if block in weights else block for block in self._captured.inputs])
        return _Call(self.schedule, backend, state, inputs)

    def _tensors_of_caller(self, leaves: Sequence[Any]) -> dict[int, Tensor]:
        """Return weights, buffers and arguments by block."""
        arguments = zip(self._captured.inputs, leaves, strict=True)
        return self._of_module | {block: leaf for block, leaf in arguments if block is not None}


class _Call:
    """The memory of one call after another, each from its forward to its backward pass."""

    def __init__(
        self, schedule: Schedule, backend: TensorBackend, state: BoundState, inputs: tuple[int | None, ...]
    ) -> None:
        self.backend = backend
        self._schedule = schedule
        self.state = state
        self._inputs = inputs
        self._program = BoundSchedule(schedule, backend)
        results = (block.index for block in schedule.graph.blocks if block.role in RESULT_ROLES)
        self._step_blocks = [*results, *(block for block in inputs if block is not None)]

    def forward(self, leaves: Sequence[Any], outputs: Sequence[Value], read_later: frozenset[int]) -> list[Tensor]:
        """Issue the forward pass, and return its outputs."""
        with self._running():
            for block, leaf in zip(self._inputs, leaves, strict=True):
                if block is not None:
                    self.backend.bind(block, leaf.detach())
            self._program.issue_forward(timed=False)
            made = [_own_tensor(self.backend.tensors.tensor(value)) for value in outputs]
            given = (block for block in self._inputs if block is not None)
            for block in {*given, *(value.block for value in outputs)} - read_later:
                self.backend.unbind(block)
            return made

    def backward(self, gradients: Mapping[int, Tensor]) -> None:
        """Issue the backward pass.

        Args:
            gradients: gradients of the outputs, by their blocks.
        """
        with self._running():
            self.backend.tensors.passed.update(gradients)
            self._program.issue_backward()

    def results(self, values: Sequence[Value]) -> list[Tensor | None]:
        """Return the gradients of weights and inputs, and release everything."""
        made: list[Tensor | None] = [self.backend.tensors.tensor(value) for value in values]
        for block in self._step_blocks:
            self.backend.unbind(block)
        return made

    def abandon(self) -> None:
        """End a call whose backward pass will not run."""
        self.backend.abandon()
        self.backend.close()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Run a part of the schedule, in the dtypes of the capture.

        Raises:
            OutOfMemory: the device's memory is exhausted.
        """
        device = self.backend.device
        try:
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                yield
        except BaseException as error:
            self.abandon()
            if not isinstance(error, torch.OutOfMemoryError):
                raise
            needed_bytes = self._schedule.peak_bytes
            raise OutOfMemory(needed_bytes=needed_bytes, capacity_bytes=capacity_bytes(device)) from error


class _Waiting:
    """A call between its forward and its backward pass; abandons it when autograd drops the history."""

    def __init__(self, step: WrappedStep, call: _Call) -> None:
        self._step = step
        self._call: _Call | None = call
        self._abandon = finalize(self, _abandon, step, call)
        step.waiting += 1

    def take(self) -> _Call:
        """Return the call for its backward pass.

        Raises:
            MembenchError: it has run.
        """
        call, self._call = self._call, None
        if call is None:
            raise MembenchError(
                "the backward pass of this call of a wrapped module has run already and has freed what it needed: add "
                "the losses up and call backward once, or call the module again (retain_graph=True cannot keep it)"
            )
        self._abandon.detach()
        self._step.waiting -= 1
        return call


class _Halves(torch.autograd.Function):
    """The node of autograd's graph that stands for a wrapped module."""

    @staticmethod
    def forward(ctx: Any, step: WrappedStep, leaves: Sequence[Any], *_: Tensor) -> tuple[Tensor, ...]:
        ctx.noted = step.second_derivatives.note(leaves)
        call, outputs = step.begin(leaves)
        ctx.step, ctx.waiting = step, _Waiting(step, call)
        ctx.set_materialize_grads(False)
        pairs = zip(outputs, step.differentiable(), strict=True)
        ctx.mark_non_differentiable(*(output for output, has_gradient in pairs if not has_gradient))
        ctx.save_for_backward(*step.tensors_read_later(leaves, outputs))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [each for each in gradients if each is not None]
        if any(map(is_batched, given)):
            raise MembenchError(
                "the backward pass of a wrapped module takes one gradient of each output, not a batch of them; leave "
                "is_grads_batched or vectorize out, or pass the module that was wrapped"
            )
        check_untransformed(given)
        if torch.is_grad_enabled():
            return None, None, *ctx.step.second_derivatives.gradients(ctx.noted, gradients)
        call = ctx.waiting.take()
        try:
            _ = ctx.saved_tensors  # raises if one was overwritten since
        except BaseException:
            call.abandon()
            raise
        return None, None, *ctx.step.end(call, gradients)


def check_untransformed(tensors: Iterable[Tensor]) -> None:
    """Refuse a wrapped module's forward or backward pass within a transform of torch; see `check_no_transform`."""
    check_no_transform("a wrapped module", "pass the module that was wrapped", tensors)


def _abandon(step: WrappedStep, call: _Call) -> None:
    step.waiting -= 1
    call.abandon()


def _close_all(calls: "list[_Call]") -> None:
    while calls:
        calls.pop().backend.close()


def _own_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in the same memory that is not a view to autograd, and that the backend does not refer to."""
    own = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    own.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return own


def _as_captured(value: Value, gradient: Tensor | None, device: torch.device) -> Tensor:
    """Return an output's gradient in the captured layout; zeros where there is none."""
    if gradient is not None:
        layouts = zip(value.shape, gradient.stride(), value.stride, strict=True)
        if all(given == wanted for size, given, wanted in layouts if size > 1):
            return gradient.detach().as_strided(value.shape, value.stride)
    memory = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=device)
    return memory.zero_() if gradient is None else memory.copy_(gradient.detach())


def _read_after_the_turn(schedule: Schedule) -> frozenset[int]:
    """Return the blocks that tasks of the backward pass read."""
    after = (item for item in schedule.instructions[schedule.turn :] if isinstance(item, Compute))
    computes = (schedule.graph.tasks[item.task] for item in after)
    return frozenset(block for task in computes if task.index != schedule.graph.turn for block in task.reads)


def _dependence(graph: TaskGraph, gradients: Sequence[Value]) -> list[frozenset[int]]:
    """Return for each gradient the blocks of the outputs' gradients that it is computed from."""
    reached: dict[int, frozenset[int]] = {}
    for task in graph.tasks:
        if task.index == graph.turn:
            reached |= {block: frozenset({block}) for block in task.creates}
            continue
        sources = frozenset[int]().union(*(reached.get(block, frozenset()) for block in task.reads))
        for block in task.writes:
            reached[block] = reached.get(block, frozenset()) | sources
    return [reached.get(value.block, frozenset()) for value in gradients]
