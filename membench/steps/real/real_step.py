"""The base class of steps that run."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NoReturn

from membench.backends.real import real_backends
from membench.backends.tensor_backend import TensorBackend
from membench.capture.state.module_state import preserve_state
from membench.core.errors import MembenchError
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.graph.timeline import Timeline
from membench.core.libraries.torch_contexts import attention_switches, autocast_dtype
from membench.core.record import Source
from membench.core.step.arguments import ExpectedArguments
from membench.core.step.workload import Workload
from membench.execution.measurement import Throughput, throughput
from membench.steps.measurement import StepMeasurement, one_run, whole_step
from membench.steps.real.real_update import RealUpdate

_WINDOWS, _STEPS_PER_WINDOW = 3, 2


class RealStep(ABC):
    """Base class of steps that run: bound to this process, used by one thread at a time, neither copied nor pickled.

    Attributes:
        workload: the computation; its example batch, on which the step is measured, lies where a step expects it.
        plan: the step's schedules, and how often each runs; each prints as text.
        predicted_peak_bytes: the peak of all memory that the step holds, without gradients of an earlier step that the
            caller has not cleared; of a batch in micro-batches, only one of them counts.
    """

    def __init__(
        self, workload: Workload, plan: tuple[RepeatedSchedule, ...], update: RealUpdate | None = None
    ) -> None:
        self._update = update
        self.workload = workload
        self.plan = plan
        self.predicted_peak_bytes = max(run.schedule.peak_bytes for run in plan)
        self._expected_inputs = ExpectedArguments("inputs", workload.inputs)
        self._expected_targets = ExpectedArguments("targets", workload.targets)
        self._one_at_a_time = Lock()
        self._attention = attention_switches()
        self._autocast_to = {device: autocast_dtype(device) for device in real_backends()}

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            MembenchError: always; contains an alternative.
        """
        raise MembenchError(
            "a step cannot be copied or pickled: it is bound to its module and this process; copy the module and "
            "compile the copy (the schedules in step.plan can be pickled)"
        )

    @property
    @abstractmethod
    def backends(self) -> tuple[TensorBackend, ...]:
        """The backends that run the step, one for each schedule of the plan."""

    @abstractmethod
    def close(self) -> None:
        """Release threads, host memory and CUDA graphs; see `restore`."""

    @abstractmethod
    def _run_example(self) -> object:
        """Run the step on the example batch."""

    @abstractmethod
    def _measure_peak(self) -> int:
        """Return the bytes that one step on the example batch holds at most, the caller's tensors included."""

    @abstractmethod
    def _timelines(self) -> tuple[Timeline, ...]:
        """Run each schedule of the plan once on the example batch, with a clock around each instruction."""

    def measure(self, *, samples: Throughput | None = None) -> StepMeasurement:
        """Measure peak memory in one step, throughput in others, and a timeline in a last one.

        Runs on the example batch. Restores gradients, buffers, the random generator and what an optimizer updates.

        Args:
            samples: the throughput if it has been measured already.

        Raises:
            OutOfMemory: the device has less memory than the step needs.
        """
        device = self.backends[0].device
        with self._preserved():
            self._run_example()  # warm up; from here on gradients that micro-batches add to exist
            peak = self._measure_peak()
            samples = samples or throughput(
                self._run_example,
                device,
                images_per_step=self.workload.batch_size,
                steps_per_window=_STEPS_PER_WINDOW,
                windows=_WINDOWS,
            )
            runs = [
                (one_run(Source.MEASURED, run.schedule, timeline), run.count)
                for run, timeline in zip(self.plan, self._timelines(), strict=True)
            ]
        return whole_step(runs, samples, peak)

    def restore(self) -> None:
        """Apply deferred updates, and give the optimizer back the states that the step keeps on a disk.

        Until then these states, and weights whose update is deferred with their states, are empty tensors, of shape
        (0,). ``state_dict()`` of the module and of the optimizer do this too, and `close`. Call it before weights or
        states are read, pickled or copied in another way, or used by another step.

        After a step that has failed, such as on a full or broken disk, each state is that which belongs to its weight:
        both are as before the step, or both are updated.

        Raises:
            DiskFailed: the disk is broken.
        """
        for backend in self.backends:
            backend.restore()

    @contextmanager
    def _preserved(self) -> Iterator[None]:
        self.restore()
        optimizer = self._update.optimizer if self._update else None
        with preserve_state(self.workload.module, self.backends[0].device, optimizer):
            yield
