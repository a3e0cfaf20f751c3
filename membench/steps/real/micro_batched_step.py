"""MicroBatchedStep: a training step whose batch is computed in micro-batches."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from membench.backends.tensor_backend import TensorBackend
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.graph.timeline import Timeline
from membench.core.step.arguments import Arguments
from membench.core.step.workload import Workload
from membench.execution.measurement import peaks_bytes
from membench.steps.real.bound_state import check_arguments
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.ignored_targets import IgnoredTargets
from membench.steps.real.mean_loss import check_mean_over_samples
from membench.steps.real.real_step import RealStep
from membench.steps.real.real_update import RealUpdate


class MicroBatchedStep(RealStep):
    """A step in micro-batches that runs on the CPU or a GPU: called like a `CompiledStep`.

    Gradients accumulate in ``.grad`` over the micro-batches, each weighted by its share of the samples. For networks
    that treat samples independently they are the whole batch's; batch norm takes its statistics from each micro-batch,
    and updates its running statistics once per micro-batch. An optimizer updates the weights once, after the last one.

    Args:
        workload: the whole batch, placed for the schedules.
        steps: one for each of `plan`.
        loss: the scalar to which they add their losses.

    Raises:
        UnsupportedModel: the loss is not a mean over the samples.
    """

    def __init__(
        self,
        workload: Workload,
        plan: tuple[RepeatedSchedule, ...],
        steps: tuple[CompiledStep, ...],
        loss: Tensor,
        update: RealUpdate | None = None,
    ) -> None:
        super().__init__(workload, plan, update)
        self._steps = steps
        self._ignored_targets = IgnoredTargets(plan[0].schedule.graph, steps[0].leaf_blocks)
        self._loss = loss
        graphs = [run.schedule.graph for run in plan for _ in range(run.count)]
        sizes = [graph.micro_batch_size for graph in graphs for _ in range(graph.batch_size // graph.micro_batch_size)]
        # the module alone does not run on a GPU while its weights are in host memory
        weights_are_apart = workload.device.type != "cpu" and any(
            step.backend.has_host_resident_blocks for step in steps
        )
        if len(sizes) > 1 and not weights_are_apart:
            check_mean_over_samples(workload, *sizes[:2])

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        """Run one step on new data and return the loss of the whole batch, a scalar without history.

        Args:
            inputs: as the module takes them (see `compile`), of the whole batch's shapes and dtypes.
            targets: as the loss takes them, of the whole batch's shapes and dtypes.

        Raises:
            ShapeMismatch: the data does not have those shapes and dtypes.
            MembenchError: the loss ignores some of the targets.
        """
        of_inputs = check_arguments(self._expected_inputs, inputs)
        of_targets = check_arguments(self._expected_targets, targets)
        self._ignored_targets.check([*of_inputs, *of_targets])
        inputs, targets = self._expected_inputs.nested(of_inputs), self._expected_targets.nested(of_targets)
        with self._one_at_a_time:
            self._loss.zero_()
            if self._update:
                self._update.zero_gradients()
            for run in self._runs(inputs, targets):
                run()
            return self._loss.clone()

    def _run_example(self) -> Tensor:
        return self(self.workload.inputs, self.workload.targets)

    def _measure_peak(self) -> int:
        held_bytes = []
        start = 0
        for step, run in zip(self._steps, self.plan, strict=True):  # each counts the samples of its own micro-batch
            stop = start + run.schedule.graph.batch_size
            inputs, targets = (
                self.workload.samples(each, start, stop) for each in (self.workload.inputs, self.workload.targets)
            )
            held_bytes.append(step.held_bytes(inputs, targets))
            start += run.samples
        peaks = peaks_bytes(
            self._runs(self.workload.inputs, self.workload.targets), self.backends[0].device, self.backends
        )
        return max(held + peak for held, peak in zip(held_bytes, peaks, strict=True))

    def _timelines(self) -> tuple[Timeline, ...]:
        return tuple(step.timeline() for step in self._steps)

    @property
    def backends(self) -> tuple[TensorBackend, ...]:
        return tuple(step.backend for step in self._steps)

    def close(self) -> None:
        for step in self._steps:
            step.close()

    def _runs(self, inputs: Arguments, targets: Arguments) -> Iterator[Callable[[], None]]:
        """Yield for each schedule a function that computes all of its micro-batches."""
        start = 0
        for step, run in zip(self._steps, self.plan, strict=True):
            starts = range(start, start + run.samples, run.schedule.graph.batch_size)
            yield partial(self._compute, step, inputs, targets, starts)
            start += run.samples

    def _compute(self, step: CompiledStep, inputs: Arguments, targets: Arguments, starts: range) -> None:
        for start in starts:
            stop = start + starts.step
            step(self.workload.samples(inputs, start, stop), self.workload.samples(targets, start, stop))
