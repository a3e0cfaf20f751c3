"""Failures of a module on tensors without data, as an error that names the layer, the cause and a remedy."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from membench.core.errors import BatchMismatch, MembenchError, UnsupportedModel
from membench.core.libraries.torch_internals import (
    FAKE_TENSOR_LOGGER,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from membench.core.step.arguments import named_leaves
from membench.core.step.workload import Workload

VALUE_READ = (
    "Python reads the value of a tensor, which differs from step to step",
    "leave it a tensor: torch.where in place of if, the tensor in place of its item(); membench.predict takes the "
    "values of a batch with data",
)
"""Cause and remedy of the refusal of a number that leaves the device."""

_GRADIENTS_WITHIN = (
    "it takes gradients within itself in a way that asks for a GPU, and this machine has none",
    "take a single gradient by torch.autograd.grad in place of torch.func; gradients per sample and Jacobians run in "
    "membench.compile on the CPU, which counts their memory, and are predicted on a machine with a GPU",
)
_NO_GPU = (
    "it asks for a GPU, as a CUDA stream or an operator without a shape function does, and this machine has none",
    "register a fake implementation of the operator (torch.library), or leave it out, or predict on a machine with a "
    "GPU",
)

_CAUSES = {
    "hasPrimaryContext": _GRADIENTS_WITHIN,
    "opt_ready_stream": _GRADIENTS_WITHIN,
    "NVIDIA driver": _NO_GPU,
    "No CUDA GPUs": _NO_GPU,
    "not compiled with CUDA": _NO_GPU,
    "dummy base class": _NO_GPU,  # of a CUDA event or stream
    "CUDA error: CUDA driver": _NO_GPU,
    "data is not allocated yet": (  # of a tensor among numbers, torch.tensor([0.5, mean]), or in a kernel's own C++
        f"{VALUE_READ[0]}, or a kernel that is not an operator of torch reads it",
        f"{VALUE_READ[1]}; register the kernel: torch.library.custom_op, with register_fake and register_autograd",
    ),
    "shape_env must not be None": (
        "it makes a nested tensor, whose sizes depend on data",
        "pack the sequences: torch.nn.attention.varlen, with their limits as a tensor, or pad them",
    ),
}
"""By a part of torch's message."""


LOSS = "loss"
"""The name of the loss among layers."""
_MISFIT = re.compile(
    r"shapes cannot be multiplied|[Ss]ize mismatch|must match the size|same number of dimensions|"
    r"[Ee]xpected (input|target|\d|.*input.* to have|.*scalar type)|target tensor expected|target size|"
    r"expected .* but got|to have \d+ channels|unexpected keyword argument|missing \d+ required|"
    r"positional arguments? but|is invalid for input|normalized_shape|must be Tensor, not"
)
"""What torch says of a tensor that an operator does not take."""
_OF_OUTPUT = re.compile(r"must be Tensor, not")


@contextmanager
def failures_named(workload: Workload, layer_name: Callable[[], str]) -> Iterator[None]:
    """Turn any exception of a module, its loss or torch into an UnsupportedModel that names the layer.

    Args:
        layer_name: returns the name of the layer that is running.
    """
    logger = logging.getLogger(FAKE_TENSOR_LOGGER)
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # torch would log the traceback of an error that is raised as well
    try:
        yield
    except DataDependentOutputException as error:
        raise UnsupportedModel(layer_name(), *VALUE_READ) from error
    except DynamicOutputShapeException as error:
        raise UnsupportedModel(
            layer_name(),
            f"the shape of what {error.func} returns depends on the values of tensors",
            "use operators whose results have one shape, such as torch.where with three arguments; membench.predict "
            "takes the shape from the values of a batch with data, and experts of transformers have one with "
            "model.set_experts_implementation('grouped_mm')",
        ) from error
    except UnsupportedOperatorException as error:
        raise UnsupportedModel(
            layer_name(),
            f"operator {error.func} has no shape function",
            "register a fake implementation (torch.library), or replace the operator",
        ) from error
    except MembenchError:
        raise
    except Exception as error:
        misfit = _misfit(workload, layer_name(), _first_line(error))
        raise misfit or UnsupportedModel(layer_name(), *_failure(workload, error)) from error
    finally:
        logger.setLevel(level)


def _misfit(workload: Workload, layer: str, message: str) -> BatchMismatch | None:
    """Return the error for a batch that is not of the module's shapes, dtypes or names, by what torch says of it."""
    if workload.accumulates or not _MISFIT.search(message):
        return None
    if _OF_OUTPUT.search(message):
        what = "the loss does not take what the module returns"
        message += "; pass a function of the output, such as lambda output: output.loss for a network of transformers"
    else:
        place = f"layer {layer!r}" if layer in dict(workload.module.named_modules()) and layer else "the module"
        what = "the targets do not fit the loss" if layer == LOSS else f"the batch does not fit {place}"
    tensors = [*named_leaves("inputs", workload.inputs), *named_leaves("targets", workload.targets)]
    given = [f"{name} {_in_words(leaf)}" for name, leaf in tensors if isinstance(leaf, Tensor)]
    return BatchMismatch(layer, what, message, ", ".join(given))


def _in_words(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _failure(workload: Workload, error: Exception) -> tuple[str, str]:
    """Return the cause and the remedy of a module's failure on tensors without data."""
    message = _first_line(error)
    if (known := next((each for part, each in _CAUSES.items() if part in message), None)) is not None:
        return known
    cause = f"it does not run on {workload.batch_size} samples without data: {message}"
    if workload.accumulates:
        return cause, "raise the budget, or give a larger micro-batch"
    return cause, "give a batch on which the module runs, and compute only with torch's operators"
