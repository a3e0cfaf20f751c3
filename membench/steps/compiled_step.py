"""CompiledStep: a captured step under a schedule, as its user calls it."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from operator import attrgetter
from threading import Lock
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from membench.backends.cuda import CudaBackend
from membench.backends.cuda_memory import capacity_bytes
from membench.backends.tensor_backend import TensorBackend
from membench.capture.capture import CapturedStep
from membench.capture.module_state import ModuleState, preserve_state
from membench.core.call import Value
from membench.core.errors import MembenchError, ModuleChanged, OutOfMemory, ShapeMismatch
from membench.core.record import Source
from membench.core.schedule import RepeatedSchedule, Schedule
from membench.core.task_graph import RESULT_ROLES, Role
from membench.core.timeline import Timeline
from membench.core.workload import Workload, is_dense
from membench.execution.cuda_graph import GraphPool, ReplayedProgram
from membench.execution.executor import Program
from membench.execution.measurement import Throughput, peak_bytes, throughput
from membench.steps.measurement import StepMeasurement, step_measurement

_WINDOWS, _STEPS_PER_WINDOW = 3, 2
_SHAPE = attrgetter("shape")
_Memory = tuple[int, torch.Size, tuple[int, ...]]
"""A tensor's address, shape and strides."""


class ProcessBound:
    """What has threads and memory of its own, and one thread at a time may use."""

    def __init__(self) -> None:
        self._one_at_a_time = Lock()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            MembenchError: says what to do instead.
        """
        raise MembenchError(
            "a step cannot be copied or pickled: it belongs to its module and this process; copy the module and compile "
            "that one (what step.plan holds can be pickled)"
        )


class CompiledStep(ProcessBound):
    """A captured training step that runs on the CPU or a GPU under a schedule.

    Calling it computes the loss and leaves gradients in ``.grad`` and statistics in the buffers as
    ``loss.backward()`` would; an optimizer works on top unchanged. A step of inference returns what the module would.
    On a GPU it returns as soon as everything is issued.

    Args:
        workload: placed for this schedule, see `place`.
        graph_pool: replay the step as one CUDA graph, with memory from that pool; the gradients then lie in the same
            memory after every step. None: issue each step.
        loss_so_far: for a micro-batch, the sum to which it adds its loss, and which it returns.

    Attributes:
        workload: what it computes; the example batch, on which it is measured, lies where a step takes one.
        schedule: the program; prints as text.
        plan: likewise, as every step has it: schedules, and how often each runs.
        predicted_peak_bytes: everything that the step holds at its worst moment. Gradients of an earlier step
            that the caller has not cleared come on top.
        backend: what runs it.
    """

    def __init__(
        self,
        workload: Workload,
        captured: CapturedStep,
        schedule: Schedule,
        backend: TensorBackend,
        *,
        graph_pool: GraphPool | None = None,
        loss_so_far: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.workload = workload
        self.schedule = schedule
        self.plan = (RepeatedSchedule(schedule),)
        self.predicted_peak_bytes = schedule.peak_bytes
        self._captured = captured
        self.backend = backend
        self._program = Program(schedule, backend)
        self._replayed = None
        if graph_pool is not None:
            assert isinstance(backend, CudaBackend)
            self._replayed = ReplayedProgram(self._program, backend, graph_pool)
        self._module_state = ModuleState(workload.module, workload.loss)
        self._weights = dict(workload.module.named_parameters())
        self._state: dict[int, Tensor] = {
            **{captured.weights[name]: weight for name, weight in self._weights.items()},
            **{captured.buffers[name]: buffer for name, buffer in workload.module.named_buffers()},
            **{block: backend.place(block, tensor) for block, tensor in captured.constants.items()},
        }
        if loss_so_far is not None and schedule.graph.loss is not None:
            self._state[schedule.graph.loss.block] = loss_so_far
        self._sums = {
            name: value
            for name, value in schedule.graph.gradients
            if value and schedule.graph.blocks[value.block].role is Role.ACCUMULATED
        }
        # a graph knows sums by their address, and what is page-locked stays: such sums are used again
        keeps_sums = graph_pool is not None or any(
            backend.lives_on_host(value.block) for value in self._sums.values()
        )
        self._kept_sums: dict[str, Tensor] | None = {} if keeps_sums else None
        self._kinds = {block: _laid_out(tensor) for block, tensor in self._state.items()}
        self._memory: dict[int, _Memory] = {}
        self._handed_over = [block.index for block in schedule.graph.blocks if block.role in RESULT_ROLES]
        self._handed_over += [block for block in captured.inputs + captured.targets if block is not None]

    def __call__(self, inputs: Any, targets: Any = ()) -> Any:
        """Run one step on new data and return the loss, a scalar without history, or the module's output.

        Args:
            inputs: a tensor or tuple of tensors, of the captured shapes and dtypes.
            targets: likewise; none in a step of inference.

        Raises:
            ShapeMismatch: the data does not have the captured shapes and dtypes.
            ModuleChanged: the module is no longer what was captured.
            MembenchError: the data requires a gradient.
        """
        if self._replayed:
            self._move_gradients()
        with self._issued(as_tuple(inputs), as_tuple(targets), timed=False):
            graph, tensors = self.schedule.graph, self.backend.tensors
            result = tree_map_only(Value, tensors.tensor, graph.output if graph.loss is None else graph.loss)
            for name, value in graph.gradients:
                weight = self._weights[name]
                if value is None or name in self._sums:
                    continue
                gradient = tensors.tensor(value).to(weight.device)
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
            if self._replayed and self._replayed.keeps_results:
                return tree_map_only(Tensor, Tensor.clone, result)
            return result

    def measure(self, *, samples: Throughput | None = None) -> StepMeasurement:
        """Measure peak memory in one step, throughput over others, and what overlaps in a last one.

        Runs on the example batch. Leaves gradients, buffers and the random generator as they were.

        Args:
            samples: the throughput, where it has been measured already.

        Raises:
            OutOfMemory: the device has less memory than the step turned out to need.
        """
        device = self.backend.device
        with preserve_state(self.workload.module, device):
            self._run_example()  # warm up
            peak = self.schedule.graph.external_bytes + peak_bytes(self._run_example, device)
            samples = samples or example_throughput(self._run_example, device, self.schedule.graph.batch_size)
            timeline = self.timeline()
        return step_measurement(Source.MEASURED, self.schedule, peak, samples, timeline)

    def timeline(self) -> Timeline:
        """Run a step on the example batch with a clock around each instruction; gradients stay as they were."""
        return self.backend.timeline(self._run_example(timed=True))

    @property
    def backends(self) -> tuple[TensorBackend, ...]:
        """What runs it."""
        return (self.backend,)

    def close(self) -> None:
        """Give back threads, host memory and the graph."""
        self._end_replays()
        self.backend.close()

    def _run_example(self, *, timed: bool = False) -> tuple[int, ...]:
        with self._issued(self.workload.inputs, self.workload.targets, timed=timed) as issued:
            return issued

    @contextmanager
    def _issued(
        self, inputs: tuple[Any, ...], targets: tuple[Any, ...], *, timed: bool
    ) -> Iterator[tuple[int, ...]]:
        """Issue one step, whose results can be taken within, and hold nothing of it afterwards.

        One thread at a time does so. What breaks a step off (Ctrl-C, a label out of range) leaves nothing to the next.

        Raises:
            ModuleChanged, ShapeMismatch, MembenchError: see `__call__`.
            OutOfMemory: the device's allocator has no more.
        """
        with self._one_at_a_time:
            self.workload.check_gradients_are_allowed()
            self._module_state.check()
            arguments = check_arguments("inputs", self.workload.inputs, inputs)
            arguments += check_arguments("targets", self.workload.targets, targets)
            try:
                yield self._issue(arguments, timed=timed)
                if not (self._replayed and self._replayed.keeps_results):
                    self._release()
            except BaseException as error:
                self._abandon()
                if not isinstance(error, torch.OutOfMemoryError):
                    raise
                raise OutOfMemory(
                    needed_bytes=self.predicted_peak_bytes, capacity_bytes=capacity_bytes(self.backend.device)
                ) from error

    def _issue(self, arguments: tuple[Any, ...], *, timed: bool) -> tuple[int, ...]:
        """Issue one step; a timed one is never replayed, because a graph has no clock inside."""
        captured = self._captured
        replayed = None if timed else self._replayed
        if self._bind_state() or timed:
            self._end_replays()
        if replayed:
            arguments = replayed.stage(arguments)
        for block, argument in zip(captured.inputs + captured.targets, arguments, strict=True):
            if block is not None:
                self.backend.bind(block, argument)
        # a schedule's operators have the dtypes that capture saw; autocast would change them once more
        with torch.no_grad(), torch.autocast(self.backend.device.type, enabled=False):
            if replayed:
                replayed.issue()
                return ()
            return self._program.issue(timed=timed)

    def _abandon(self) -> None:
        """Let go of all that a step holds which did not end, the caller's tensors included."""
        self._end_replays()
        self.backend.abandon()
        self._memory.clear()

    def _end_replays(self) -> None:
        """Let go of the graph and of its results: the step runs elsewhere in memory now, which the graph would double."""
        if self._replayed and self._replayed.keeps_results:
            self._release()
            self._replayed.forget()

    def _bind_state(self) -> bool:
        """Bind weights, buffers, constants and sums of gradients, again where one has other memory since.

        Raises:
            ModuleChanged: what lies in the other memory has another shape, layout or dtype.
        """
        tensors = self._state | {value.block: self._sum(name, value) for name, value in self._sums.items()}
        memory = dict(zip(tensors, _memory_of(tensors.values()), strict=True))
        if memory == self._memory:
            return False
        for block, tensor in tensors.items():
            if self._memory.get(block) != memory[block]:
                self._check_kind(block, tensor)
                self.backend.bind(block, tensor.detach())
        self._memory = memory
        return True

    def _check_kind(self, block: int, tensor: Tensor) -> None:
        now, captured = _laid_out(tensor), self._kinds.get(block)
        if captured and captured != now:
            name = self.schedule.graph.blocks[block].name
            raise ModuleChanged(
                f"{name!r} is {now}, and was {captured} when the step was captured; compile again"
            )

    def _sum(self, name: str, value: Value) -> Tensor:
        """Return the gradient so far, in the layout that the step adds in; zero before the first micro-batch."""
        weight = self._weights[name]
        if weight.grad is None or weight.grad.stride() != value.stride:
            total = self._memory_for_sum(name, value)
            weight.grad = total.zero_() if weight.grad is None else total.copy_(weight.grad)
        return weight.grad

    def _memory_for_sum(self, name: str, value: Value) -> Tensor:
        if self._kept_sums is not None and name in self._kept_sums:
            return self._kept_sums[name]
        device = self._weights[name].device
        memory = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=device)
        if self._kept_sums is not None:
            memory = self._kept_sums[name] = self.backend.place(value.block, memory)
        return memory

    def _move_gradients(self) -> None:
        """Let gradients that the caller accumulates lie where the next replay does not write."""
        for name, weight in self._weights.items():
            if weight.grad is not None and name not in self._sums:
                weight.grad = weight.grad.clone()

    def _release(self) -> None:
        """Let go of the arguments and of the results, which belong to the caller now: he frees what he clears."""
        for block in self._handed_over:
            self.backend.unbind(block)
        if self._kept_sums is None:
            for value in self._sums.values():
                self.backend.unbind(value.block)
                self._memory.pop(value.block, None)


def example_throughput(run: Callable[[], object], device: torch.device, batch_size: int) -> Throughput:
    """Time a few windows of steps on the example batch."""
    return throughput(
        run,
        device,
        images_per_step=batch_size,
        steps_per_window=_STEPS_PER_WINDOW,
        windows=_WINDOWS,
    )


def as_tuple(argument: Any) -> tuple[Any, ...]:
    """Return what a caller gave as one tensor or as several."""
    return tuple(argument) if isinstance(argument, tuple | list) else (argument,)


def check_arguments(name: str, expected: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments in the captured memory layout, having checked that they are what was captured.

    Raises:
        ShapeMismatch: there are more or fewer, or one has another shape, dtype, device or value.
        MembenchError: one requires a gradient.
    """
    if len(given) != len(expected):
        raise ShapeMismatch(f"the step was captured with {len(expected)} {name} and got {len(given)}")
    checked = []
    for position, (captured, argument) in enumerate(zip(expected, given, strict=True)):
        if _kind(captured) != _kind(argument):
            raise ShapeMismatch(
                f"{name}[{position}] is {_shown(argument)}; the step takes {_kind(captured)}; move it there, or compile a step "
                "for each shape and leave out a last batch that is smaller"
            )
        if isinstance(argument, Tensor):
            if argument.requires_grad and torch.is_grad_enabled():
                raise MembenchError(
                    f"{name}[{position}] requires a gradient, which the step does not give; detach it, or make what "
                    "computes it a part of the module"
                )
            if argument.stride() != captured.stride() or argument.is_conj() or argument.is_neg():
                argument = torch.empty_like(captured).copy_(argument)
        checked.append(argument)
    return tuple(checked)


def _shown(argument: Any) -> str:
    """Return what an argument is, in a few words."""
    kind = _kind(argument)
    return kind if isinstance(argument, Tensor) or len(kind) < 60 else f"a {type(argument).__name__}"


def _memory_of(tensors: Collection[Tensor]) -> Iterator[_Memory]:
    """Return where tensors lie; in C, because each step asks for all of a module's."""
    return zip(map(Tensor.data_ptr, tensors), map(_SHAPE, tensors), map(Tensor.stride, tensors), strict=True)


def _laid_out(tensor: Tensor) -> str:
    return f"{_kind(tensor)} with strides {tensor.stride()}"


def _kind(argument: Any) -> str:
    if isinstance(argument, Tensor):
        if not is_dense(argument):
            return "a sparse or nested tensor"
        return f"a {argument.device.type} tensor of shape {tuple(argument.shape)} and {argument.dtype}"
    return repr(argument)
