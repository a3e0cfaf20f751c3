"""CompiledStep: a captured step under a schedule, callable by the user."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from membench.backends.accelerator import AcceleratorBackend
from membench.backends.accelerator_memory import capacity_bytes
from membench.backends.tensor_backend import TensorBackend
from membench.capture.capture import CapturedStep
from membench.core.errors import MembenchError, OutOfMemory, ShapeMismatch
from membench.core.graph.call import Value
from membench.core.graph.schedule import RepeatedSchedule, Schedule
from membench.core.graph.task_graph import RESULT_ROLES, Role
from membench.core.graph.timeline import Timeline
from membench.core.libraries.shared_memory import DistinctMemory, sharing, span_of, storage_span
from membench.core.libraries.torch_devices import GraphPool
from membench.core.libraries.torch_internals import tree_map_only
from membench.core.step.arguments import Arguments, as_arguments, map_leaves
from membench.core.step.opened import change, closed, let_go, objects_in
from membench.core.step.stored import gradient_of, single_stored
from membench.core.step.workload import Workload
from membench.execution.cuda_graph import ReplayedSchedule
from membench.execution.executor import BoundSchedule
from membench.execution.measurement import peak_bytes
from membench.steps.real.applied_updates import AppliedUpdates
from membench.steps.real.bound_state import (
    BoundState,
    check_arguments,
    check_attention,
    check_autocast,
    check_untransformed,
    exchange_buckets,
)
from membench.steps.real.real_step import RealStep
from membench.steps.real.real_update import RealUpdate
from membench.steps.real.watched_state import WatchedState


class CompiledStep(RealStep):
    """A captured step of training or inference that runs on the CPU or a GPU under a schedule.

    Calling it computes the loss and leaves gradients in ``.grad`` and statistics in the buffers as ``loss.backward()``
    would, for any optimizer; with an optimizer of its own it updates the weights, and frees the gradients. A step of
    inference returns the module's output. On a GPU the call returns as soon as everything is issued.

    Args:
        workload: placed for this schedule, see `place_workload`.
        graph_pool: replay the step as one CUDA graph, with memory from that pool; the gradients then lie in the same
            memory after every step. None: issue each step.
        loss_accumulator: for a micro-batch, the scalar to which the step adds its loss, and which it returns.
        applied: the update's tasks in this schedule.
        begin: called before each step.
        parts: by the block of an argument in the graph of a micro-batch, the blocks of the parts of it, one for each
            micro-batch, None where the schedule does not use it; None: as the schedule's graph has them.

    Attributes:
        schedule: the program, which `plan` runs once; prints as text.
        backend: the backend that runs the step.
        leaf_blocks: the block of each leaf of inputs and targets, or of its first micro-batch; None: not a tensor.
        argument_blocks: the blocks of all parts of the leaves, of each one for each micro-batch of the schedule.
        watched: what the step depends on besides its arguments' tensors.
    """

    def __init__(
        self,
        workload: Workload,
        captured: CapturedStep,
        schedule: Schedule,
        backend: TensorBackend,
        *,
        graph_pool: GraphPool | None = None,
        loss_accumulator: Tensor | None = None,
        update: RealUpdate | None = None,
        applied: AppliedUpdates | None = None,
        begin: Callable[[], None] | None = None,
        parts: Mapping[int, Sequence[int | None]] | None = None,
    ) -> None:
        super().__init__(workload, (RepeatedSchedule(schedule),), update)
        parts = {own[0]: own for own in schedule.graph.parts} if parts is None else parts
        self.leaf_blocks = captured.inputs + captured.targets
        self._divided = [(block,) if block is None else parts.get(block, (block,)) for block in self.leaf_blocks]
        self.argument_blocks = tuple(part for own in self._divided for part in own)
        self.schedule, self.backend = schedule, backend
        self._captured, self._begin = captured, begin
        self._program = BoundSchedule(schedule, backend)
        self._deferred = applied if applied is not None and applied.has_deferred else None
        if self._deferred:
            self._deferred.finish_before_reading(self, workload.module, backend)
        if update is not None and backend.disk is not None:
            update.follow_states(schedule.graph, backend.disk)
        self._replayed: ReplayedSchedule | None = None
        if graph_pool is not None:
            assert isinstance(backend, AcceleratorBackend), "a CUDA graph is one of a GPU"
            self._replayed = ReplayedSchedule(self._program, backend, graph_pool)
        self.watched = WatchedState(workload, captured.recorded)
        self._weights = dict(workload.module.named_parameters())
        accumulated = exchange_buckets(schedule.graph, backend)
        if loss_accumulator is not None and schedule.graph.loss is not None:
            accumulated[schedule.graph.loss.block] = loss_accumulator
        self._state = BoundState(schedule.graph, backend, captured, workload.module, accumulated)
        self._find_gradients(keeps=graph_pool is not None)
        example = (*self._expected_inputs.leaves, *self._expected_targets.leaves)
        self._sharing = sharing([each for each in example if isinstance(each, Tensor)])
        results = [block.index for block in schedule.graph.blocks if block.role in RESULT_ROLES]
        arguments = {block for block in self.argument_blocks if block is not None} - schedule.graph.given_up
        self._step_blocks = [*results, *arguments]
        written = {block for task in schedule.graph.tasks for block in task.writes}
        in_objects = written.intersection(captured.inputs) if objects_in(workload.inputs) else set()
        self._written = in_objects - schedule.graph.given_up
        if graph_pool is not None and (self._written or schedule.graph.given_up):
            raise MembenchError("the step changes its inputs, of which a CUDA graph has copies; leave cuda_graph out")

    def _find_gradients(self, *, keeps: bool) -> None:
        """Find where gradients of weights are.

        Args:
            keeps: accumulators are used again.
        """
        schedule, backend, captured = self.schedule, self.backend, self._captured
        gradients = {n: v for n, v in schedule.graph.gradients if v}
        roles = {name: schedule.graph.blocks[value.block].role for name, value in gradients.items()}
        self._accumulators = {n: v for n, v in gradients.items() if roles[n] is Role.ACCUMULATED}
        self._gradients = [
            (self._weights[n], v, captured.wrappers.get(n))
            for n, v in gradients.items()
            if roles[n] is Role.WEIGHT_GRADIENT
        ]
        # a CUDA graph contains addresses, and page-locked memory is kept: such accumulators are used again
        self._keeps_accumulators = keeps or any(
            backend.is_host_resident(value.block) for value in self._accumulators.values()
        )
        self._kept_accumulators: dict[str, Tensor] = {}

    def __call__(self, inputs: Any, targets: Any = ()) -> Any:
        """Run one step on new data and return the loss, a scalar without history, or the module's output.

        Args:
            inputs: as the module takes them (see `compile`), of the captured shapes and dtypes.
            targets: as the loss takes them, of the captured shapes and dtypes; none in a step of inference.

        Raises:
            ShapeMismatch: the data does not have the captured shapes and dtypes.
            ModuleChanged: the module, or what it reads of Python, has changed since the capture.
            StepOutdated: it has changed in a way that was not seen at once; see `WatchedState`.
            MembenchError: the data requires a gradient, or the call is within autocast and the capture was not.
        """
        if self._replayed:
            self._move_gradients()
        if self.workload.inputs is inputs:
            inputs = self._own_copies(inputs)
        with self._issued(inputs, targets, timed=False):
            graph, tensors = self.schedule.graph, self.backend.tensors
            result = tree_map_only(Value, tensors.tensor, graph.output if graph.loss is None else graph.loss)
            result = closed(result)
            if graph.objects_after:
                change(as_arguments(inputs), tree_map_only(Value, tensors.tensor, graph.objects_after))
            for weight, value, wrapper in self._gradients:
                gradient = tensors.tensor(value)
                if weight.is_cpu is not gradient.is_cpu:
                    gradient = gradient.to(weight.device)
                gradient = gradient_of(weight, gradient, wrapper)
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
            if self._replayed and self._replayed.keeps_results:
                return tree_map_only(Tensor, Tensor.clone, result)
            return result

    def timeline(self) -> Timeline:
        """Run a step on the example batch with a clock around each instruction; gradients and weights do not change."""
        with self._preserved() if self._update else nullcontext():
            if self._deferred:
                self._run_example()  # whose updates are deferred to the step that is timed
            return self.backend.timeline(self._run_example(timed=True))

    def _measure_peak(self) -> int:
        held_bytes = self.held_bytes(self.workload.inputs, self.workload.targets)
        return held_bytes + peak_bytes(self._run_example, self.backend.device, self.backends)

    def held_bytes(self, inputs: Any, targets: Any) -> int:
        """Return the bytes that the caller's tensors hold on the device for a step, each byte once.

        Of data that the step changes it makes copies, which count as the step's.
        """
        blocks, memory = self.schedule.graph.blocks, DistinctMemory()
        arguments = zip(self.argument_blocks, self._arguments(inputs, targets), strict=True)
        tensors = [(block, each) for block, each in arguments if block is not None]
        tensors += self._state.tensors.items()
        gradients = ((value.block, self._weights[name].grad) for name, value in self._accumulators.items())
        tensors += [(block, single_stored(each)) for block, each in gradients if each is not None]
        held = [(blocks[block], each) for block, each in tensors if block not in self._written]
        if self._update:
            held += self._update.states(self.schedule.graph)
        total_bytes = self.schedule.graph.overhead_bytes
        for block, each in sorted(held, key=lambda pair: pair[0].is_external):  # first those in host memory
            size_bytes = memory.add(storage_span(each) if block.role is Role.CONSTANT else span_of(each))
            total_bytes += size_bytes if block.is_external else 0
        return total_bytes

    def _timelines(self) -> tuple[Timeline, ...]:
        return (self.timeline(),)

    @property
    def backends(self) -> tuple[TensorBackend, ...]:
        return (self.backend,)

    def restore(self) -> None:
        super().restore()
        if self._deferred:
            self._deferred.finish(self.backend)

    def close(self) -> None:
        self._end_replays()
        self.restore()
        self.backend.close()

    @contextmanager
    def _preserved(self) -> Iterator[None]:
        with super()._preserved():
            try:
                yield
            finally:
                if self._deferred:
                    self._deferred.drop()  # of example batches

    def _run_example(self, *, timed: bool = False) -> tuple[int, ...]:
        inputs = self._own_copies(self.workload.inputs)
        with self._issued(inputs, self.workload.targets, timed=timed) as issued:
            return issued

    def _own_copies(self, inputs: Arguments) -> Arguments:
        """Return an example batch with copies of what the step changes, so that it can run again."""
        changed = self._written | self.schedule.graph.given_up
        if not changed:
            return inputs

        def own(leaf: Any, block: int | None) -> Any:
            return leaf.clone() if block in changed else leaf

        copies: Arguments = closed(map_leaves(own, inputs, self._captured.inputs))
        return copies

    @contextmanager
    def _issued(self, inputs: Any, targets: Any, *, timed: bool) -> Iterator[tuple[int, ...]]:
        """Issue one step, whose results can be read within, and release its memory afterwards.

        Locked for one thread at a time. A step that is interrupted (Ctrl-C, a label out of range) does not affect the
        next.

        Raises:
            ModuleChanged, StepOutdated, ShapeMismatch, MembenchError: see `__call__`.
            OutOfMemory: the device's memory is exhausted.
        """
        with self._one_at_a_time, self._deferred or nullcontext():
            self.workload.check_gradients_are_allowed()
            check_untransformed(self._weights.values())
            check_autocast(self.backend.device.type, self.workload.precision, self._autocast_to)
            check_attention(self._attention)
            self.watched.check()
            start_s = time.perf_counter()
            arguments = self._arguments(inputs, targets)
            if self.schedule.graph.objects_after:
                let_go(as_arguments(inputs))  # the step frees what they hold, and puts other tensors there
            try:
                yield self._issue(arguments, timed=timed)
                if not (self._replayed and self._replayed.keeps_results):
                    self._release()
                if self._deferred:
                    self._deferred.defer()
                self.watched.ran(time.perf_counter() - start_s)
            except BaseException as error:
                self._abandon()
                if not isinstance(error, torch.OutOfMemoryError):
                    raise
                raise OutOfMemory(
                    needed_bytes=self.predicted_peak_bytes, capacity_bytes=capacity_bytes(self.backend.device)
                ) from error

    def _arguments(self, inputs: Any, targets: Any) -> list[Any]:
        """Return the arguments of `argument_blocks`, checked.

        Raises:
            ShapeMismatch: see `check_arguments`, or tensors that shared memory in the example do not.
        """
        arguments = [*check_arguments(self._expected_inputs, inputs), *check_arguments(self._expected_targets, targets)]
        if self._sharing and sharing([each for each in arguments if isinstance(each, Tensor)]) != self._sharing:
            raise ShapeMismatch(
                "tensors of the example are the same or share memory, which the step counts once, and those of this "
                "call do not in that way; compile with an example like the calls, or use shapes='any' or membench.wrap"
            )
        return [
            part
            for argument, own in zip(arguments, self._divided, strict=True)
            for part in (argument.chunk(len(own)) if len(own) > 1 else (argument,))
        ]

    def _issue(self, arguments: list[Any], *, timed: bool) -> tuple[int, ...]:
        """Issue one step on arguments and clear them; a timed one is not replayed, as a CUDA graph has no clock."""
        if self._begin:
            self._begin()
        replayed = None if timed else self._replayed
        if self._bind_state() or timed:
            self._end_replays()
        if replayed:
            arguments = list(replayed.stage(tuple(arguments)))
        for block in reversed(self.argument_blocks):
            self._pass(block, arguments.pop())
        # a schedule's operators have the dtypes of the capture; autocast would change them again
        with torch.no_grad(), torch.autocast(self.backend.device.type, enabled=False):
            if replayed:
                replayed.issue()
                return ()
            return self._program.issue(timed=timed)

    def _pass(self, block: int | None, argument: Any) -> None:
        """Give the backend an argument, without another reference to one that the step gives up."""
        if block in self.schedule.graph.given_up:
            self.backend.tensors.passed[block] = argument
        elif block is not None:
            self.backend.bind(block, argument)

    def _abandon(self) -> None:
        """Release all memory of a step that did not end, including the caller's tensors."""
        self._end_replays()
        self.backend.abandon()
        self._state.forget()

    def _end_replays(self) -> None:
        """Release the CUDA graph and its results: the step now runs in other memory, in addition to the graph's."""
        if self._replayed and self._replayed.keeps_results:
            self._release()
            self._replayed.forget()

    def _bind_state(self) -> bool:
        """Bind weights, buffers, constants and accumulators if they have moved in memory; return whether any has.

        Raises:
            ModuleChanged: a tensor has another shape, layout or dtype.
        """
        return self._state.bind(
            {value.block: self._accumulator(name, value) for name, value in self._accumulators.items()}
        )

    def _accumulator(self, name: str, value: Value) -> Tensor:
        """Return the accumulated gradient in the step's layout; zero before the first micro-batch."""
        weight, wrapper = self._weights[name], self._captured.wrappers.get(name)
        held = None if weight.grad is None else single_stored(weight.grad)
        if held is None or held.stride() != value.stride:
            total = self._accumulator_memory(name, value)
            held = total.zero_() if held is None else total.copy_(held)
            weight.grad = gradient_of(weight, held, wrapper)
        return held

    def _accumulator_memory(self, name: str, value: Value) -> Tensor:
        if name in self._kept_accumulators:
            return self._kept_accumulators[name]
        device = self._weights[name].device
        memory = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=device)
        if self._keeps_accumulators:
            memory = self._kept_accumulators[name] = self.backend.place(value.block, memory)
        return memory

    def _move_gradients(self) -> None:
        """Copy gradients that the caller accumulates to memory that the next replay does not overwrite."""
        for name, weight in self._weights.items():
            if weight.grad is not None and name not in self._accumulators:
                weight.grad = weight.grad.clone()

    def _release(self) -> None:
        """Release arguments and results; the caller owns them from here on."""
        for block in self._step_blocks:
            self.backend.unbind(block)
        if not self._keeps_accumulators:
            self._state.unbind(value.block for value in self._accumulators.values())
