"""MicroBatchedStep: a training step whose batch is computed in micro-batches."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from torch import Tensor

from membench.backends.tensor_backend import TensorBackend
from membench.core.schedule import RepeatedSchedule
from membench.core.timeline import Timeline
from membench.core.workload import Workload
from membench.steps.compiled_step import CompiledStep, RealStep, as_tuple, check_arguments


class MicroBatchedStep(RealStep):
    """A step in micro-batches that runs on the CPU or a GPU: called like a `CompiledStep`.

    Gradients accumulate in ``.grad`` over the micro-batches, each weighted by its share of the samples. For networks that
    treat samples independently they are the whole batch's; batch norm takes its statistics from each micro-batch, and
    updates its running statistics once per micro-batch.

    Args:
        workload: the whole batch, placed for the schedules.
        steps: one for each of `plan`.
        loss: the scalar to which they add their losses.
    """

    def __init__(
        self,
        workload: Workload,
        plan: tuple[RepeatedSchedule, ...],
        steps: tuple[CompiledStep, ...],
        loss: Tensor,
    ) -> None:
        super().__init__(workload, plan)
        self._steps = steps
        self._loss = loss

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        """Run one step on new data and return the loss of the whole batch, a scalar without history.

        Args:
            inputs: a tensor or tuple of tensors, of the whole batch's shapes and dtypes.
            targets: a tensor or tuple of tensors, of the whole batch's shapes and dtypes.

        Raises:
            ShapeMismatch: the data does not have those shapes and dtypes.
        """
        inputs = check_arguments("inputs", self.workload.inputs, as_tuple(inputs))
        targets = check_arguments("targets", self.workload.targets, as_tuple(targets))
        with self._one_at_a_time:
            self._loss.zero_()
            for step, start, stop in self._micro_batches():
                step(self.workload.samples(inputs, start, stop), self.workload.samples(targets, start, stop))
            return self._loss.clone()

    def _run_example(self) -> Tensor:
        return self(self.workload.inputs, self.workload.targets)

    def _timelines(self) -> tuple[Timeline, ...]:
        return tuple(step.timeline() for step in self._steps)

    @property
    def backends(self) -> tuple[TensorBackend, ...]:
        return tuple(step.backend for step in self._steps)

    def close(self) -> None:
        for step in self._steps:
            step.close()

    def _micro_batches(self) -> Iterator[tuple[CompiledStep, int, int]]:
        start = 0
        for step, run in zip(self._steps, self.plan, strict=True):
            for size in repeat(run.schedule.graph.batch_size, run.count):
                yield step, start, start + size
                start += size
