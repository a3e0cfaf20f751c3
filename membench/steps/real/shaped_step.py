"""ShapedStep: compiled steps of one module and loss, one for each shape of a batch, made on first use."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from membench.backends.tensor_backend import TensorBackend
from membench.core.errors import ModuleChanged, StepOutdated
from membench.core.libraries.shared_memory import sharing
from membench.core.libraries.torch_contexts import autocast_dtype
from membench.core.libraries.torch_internals import tree_flatten
from membench.core.step.arguments import as_arguments, is_dense
from membench.core.step.opened import opened
from membench.steps.measurement import StepMeasurement
from membench.steps.real.bound_state import check_untransformed
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.kept_steps import KeptSteps, described, kind_of
from membench.steps.real.micro_batched_step import MicroBatchedStep
from membench.steps.real.real_step import RealStep


class ShapedStep:
    """A `CompiledStep` for any batch: each new kind of batch is captured and planned when it comes.

    A kind is shapes, dtypes and layouts of the batch, modes of layers, frozen weights, autocast and the default dtype.
    `measure` and `plan` are those of the example batch.

    Args:
        build: returns the step of an example batch.
        module: the steps' module.
        inputs, targets: the example batch.

    Attributes:
        workload, plan: those of the example batch; see `RealStep`.
        predicted_peak_bytes: the largest of the steps that have been made.
    """

    def __init__(
        self, build: Callable[[Any, Any], CompiledStep | MicroBatchedStep], module: nn.Module, inputs: Any, targets: Any
    ) -> None:
        self._build = build
        self._module = module
        self._kept: KeptSteps[CompiledStep | MicroBatchedStep] = KeptSteps()
        self._first = self._latest = build(inputs, targets)
        self.workload, self.plan = self._first.workload, self._first.plan
        self.predicted_peak_bytes = self._first.predicted_peak_bytes
        self._forget()
        self._kept.put(self._key(inputs, targets), self._first)

    def __call__(self, inputs: Any, targets: Any = ()) -> Any:
        """Run one step on new data; see `CompiledStep`.

        Raises:
            StepOutdated: earlier steps may have been wrong; the next call captures anew.
            MembenchError: see `compile`, for a batch of a new kind.
        """
        check_untransformed(())
        try:
            return self._step_for(inputs, targets)(inputs, targets)
        except StepOutdated:
            self._forget()
            raise
        except ModuleChanged:
            self._forget()
            return self._step_for(inputs, targets)(inputs, targets)

    def restore(self) -> None:
        """Apply the updates that the last call has deferred; see `RealStep`."""
        self._latest.restore()

    def measure(self, **options: Any) -> StepMeasurement:
        """Measure the step of the example batch; see `RealStep`."""
        self.restore()
        return self._first.measure(**options)

    __reduce__ = RealStep.__reduce__

    @property
    def steps(self) -> tuple[CompiledStep | MicroBatchedStep, ...]:
        """The steps that are kept, the latest used last."""
        return tuple(self._kept)

    @property
    def backends(self) -> tuple[TensorBackend, ...]:
        """The backends of the steps that are kept."""
        return tuple(backend for step in self._kept for backend in step.backends)

    def close(self) -> None:
        """Release threads, host memory and CUDA graphs of all steps."""
        self._first.close()
        self._kept.clear()

    def _forget(self) -> None:
        self._kept.clear()
        self._layers = list(self._module.modules())
        self._weights = list(self._module.parameters())

    def _key(self, inputs: Any, targets: Any) -> tuple[Any, ...]:
        leaves, structure = tree_flatten(opened((as_arguments(inputs), as_arguments(targets))))
        return (
            structure,
            tuple([kind_of(leaf) for leaf in leaves]),
            sharing([leaf for leaf in leaves if isinstance(leaf, Tensor) and is_dense(leaf)]),
            tuple([layer.training for layer in self._layers]),
            tuple([weight.requires_grad for weight in self._weights]),
            autocast_dtype("cpu"),
            autocast_dtype("cuda"),
            torch.get_default_dtype(),
        )

    def _step_for(self, inputs: Any, targets: Any) -> CompiledStep | MicroBatchedStep:
        key = self._key(inputs, targets)
        step = self._kept.find(key)
        if step is not self._latest:
            self._latest.restore()  # before another one reads the weights
        if step is None:
            data = (
                described("inputs", opened(as_arguments(inputs))),
                described("targets", opened(as_arguments(targets))),
            )
            what = f"a step of {type(self._module).__name__} with {', '.join(filter(None, data))}"
            step = self._kept.make(key, lambda: self._build(inputs, targets), what)
            self.predicted_peak_bytes = max(self.predicted_peak_bytes, step.predicted_peak_bytes)
        self._latest = step
        return step
