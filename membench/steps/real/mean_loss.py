"""Whether a loss is a mean over the samples, to which micro-batches add up."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from membench.capture.state.module_state import preserve_state
from membench.core.errors import UnsupportedModel
from membench.core.libraries.torch_internals import tree_flatten
from membench.core.step.arguments import call_with
from membench.core.step.opened import opened
from membench.core.step.workload import Workload

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_TOLERANCE_OF_HALF_PRECISION = 2e-2


def check_mean_over_samples(workload: Workload, first: int, second: int) -> None:
    """Compare the loss of two micro-batches of the example with the loss of both together; leaves the module as it is.

    Losses of outputs that have one row for each sample are compared on the outputs of the micro-batches. A loss that
    the module computes is compared in evaluation mode, in which samples do not depend on each other through batch norm;
    a module that fails in that mode is not checked.

    Args:
        workload: the whole batch.
        first, second: samples of the micro-batches.

    Raises:
        UnsupportedModel: they differ by more than rounding: a sum, a mean over targets of which some do not count, or a
            loss that compares the samples with each other.
    """
    spans = ((0, first), (first, first + second))
    whole = (0, first + second)

    def output_of(span: tuple[int, int]) -> Any:
        return call_with(workload.module, workload.samples(workload.inputs, *span))

    def loss_of(output: Any, span: tuple[int, int]) -> Tensor:
        assert workload.loss is not None
        made: Tensor = call_with(workload.loss, workload.samples(workload.targets, *span), output)
        return made

    with preserve_state(workload.module, workload.device), torch.no_grad(), _autocast(workload):
        outputs = [output_of(span) for span in spans]
        together = _joined(outputs, (first, second))
        if together is not None:
            parts = [loss_of(output, span) for output, span in zip(outputs, spans, strict=True)]
            wholes = [loss_of(together, whole) for _ in range(2)]
        else:
            with _evaluation_mode(workload.module):
                try:
                    parts = [loss_of(output_of(span), span) for span in spans]
                    wholes = [loss_of(output_of(whole), whole) for _ in range(2)]
                except Exception:  # such as a detector, which returns other things and takes no targets
                    return
    _refuse_difference(parts, wholes, (first, second))


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for child, is_training in modes:
            child.training = is_training


def _refuse_difference(parts: list[Tensor], wholes: list[Tensor], sizes: tuple[int, int]) -> None:
    first, second = sizes
    of_parts, (whole, again) = [each.item() for each in parts], [each.item() for each in wholes]
    mean = (first * of_parts[0] + second * of_parts[1]) / (first + second)
    tolerance = _TOLERANCE.get(wholes[0].dtype, _TOLERANCE_OF_HALF_PRECISION)
    is_random = whole != again  # or not a number
    if not is_random and abs(whole - mean) > tolerance * max(map(abs, (whole, *of_parts))):
        raise UnsupportedModel(
            "loss",
            f"micro-batches add up to a mean over the samples, but of {first + second} samples of the example the loss "
            f"is "
            f"{whole:.6g}, and the mean of the losses of {first} and {second} of them {mean:.6g}",
            "take the mean over the samples, or run the whole batch",
        )


def _joined(outputs: list[Any], sizes: tuple[int, int]) -> Any:
    """Return the samples of both outputs as one, None if it holds more than tensors of samples."""
    (ours, structure), (theirs, _) = (tree_flatten(opened(output)) for output in outputs)
    for leaves, size in zip((ours, theirs), sizes, strict=True):
        if not all(isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == size for leaf in leaves):
            return None
    return structure.unflatten(list(map(torch.cat, zip(ours, theirs, strict=True))))


def _autocast(workload: Workload) -> AbstractContextManager[object]:
    cast_to = workload.precision.autocast_dtype if workload.precision else None
    return torch.autocast(workload.device.type, dtype=cast_to) if cast_to else nullcontext()
