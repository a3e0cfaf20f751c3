"""The programs that changes make of a step: what is captured of them, and how they update their weights."""

from functools import cached_property

from membench.advice.device.changes import AS_IT_IS, Change, Changes, ModuleChanges, changes_of
from membench.capture.capture import Captures
from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.capture.update.captured_update import CapturedUpdate
from membench.core.hardware.allocator import AllocatorSettings
from membench.core.step.kernels import Compiled
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.workload import Workload
from membench.planning.rewrites.update import updated_workload
from membench.steps.predicted.fused_graphs import StepGraphs, step_graphs


class Programs:
    """A step, and what changes make of it.

    Args:
        workload, by: the step as it is.
        captured_on: the device whose operators are captured.
        modules: changes that build the module anew.
        allocator: the allocator of the step as it is.
        compiled: what of the step was given to `torch.compile`; None: nothing.
    """

    def __init__(
        self,
        workload: Workload,
        by: WeightUpdate | None,
        captured_on: AnyGpu | None,
        modules: ModuleChanges,
        allocator: AllocatorSettings,
        compiled: Compiled | None = None,
    ) -> None:
        self._allocator, self._compiled = allocator, compiled
        self._workload, self._by, self._modules, self._captured_on = workload, by, modules, captured_on
        self._built: dict[Changes, Workload] = {}

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What can be changed; asked for only where levers are: the packages of some take seconds to import."""
        return (
            *changes_of(self._workload, self._by, self._allocator, is_compiled=self._compiled is not None),
            *self._modules.changes,
        )

    def graphs(self, batch_size: int, changes: Changes = AS_IT_IS) -> StepGraphs:
        """Return the graphs of a program on a number of samples and less."""
        workload = self.workload(changes).with_batch(batch_size)
        captures = Captures(updated_workload(workload, self._by), self._captured_on, uses_values=True)
        compiled = next((change.compiled for change in changes if change.compiled), self._compiled)
        return step_graphs(captures, compiled)

    def update(self, changes: Changes) -> CapturedUpdate | None:
        """Return the update of a program; None: the step ends with the gradients."""
        if self._by is None:
            return None
        by = self._by
        for change in changes:
            by = by if change.update is None else change.update(by)
        return CapturedUpdate(by, self.workload(changes).module)

    def workload(self, changes: Changes) -> Workload:
        """Return the workload of a program.

        Raises:
            MembenchError: its module cannot be built.
        """
        workload = self._built_with(changes.intersection(self._modules.changes))
        for change in changes:
            workload = workload if change.workload is None else change.workload(workload)
        return workload

    def _built_with(self, changes: Changes) -> Workload:
        if not changes or self._modules.build is None:
            return self._workload
        if changes not in self._built:
            self._built[changes] = self._modules.build(frozenset(change.name for change in changes))
        return self._built[changes]
