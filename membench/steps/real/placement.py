"""Placement of a step's tensors: each where its block is kept, on the device or in host memory."""

from dataclasses import replace
from typing import Any

from torch import nn

from membench.backends.tensor_backend import TensorBackend
from membench.capture.capture import CapturedStep
from membench.core.step.arguments import map_leaves
from membench.core.step.stored import stored_buffers, stored_weights
from membench.core.step.workload import Workload


def place_module(module: nn.Module, captured: CapturedStep, backend: TensorBackend) -> None:
    """Move a module's weights, gradients and buffers in place; see `place_workload`."""
    weights, buffers = stored_weights(module), stored_buffers(module)
    for name, block in captured.weights.items():
        weight = weights[name]
        gradient, weight.grad = weight.grad, None
        weight.data = backend.place(block, weight.data)
        weight.grad = None if gradient is None else gradient.to(weight.device)
    for name, block in captured.buffers.items():
        buffers[name].data = backend.place(block, buffers[name].data)


def place_workload(workload: Workload, captured: CapturedStep, backend: TensorBackend) -> Workload:
    """Move a module's weights, gradients and buffers in place, as ``module.to`` does; return the moved workload.

    Args:
        captured: the workload, or a micro-batch of it.
        backend: the backend of the captured step, which determines where its blocks are kept.
    """
    place_module(workload.module, captured, backend)

    placed: dict[int, Any] = {}  # by identity: one that is passed twice stays one

    def place(argument: Any, block: int | None) -> Any:
        if block is not None and id(argument) not in placed:
            placed[id(argument)] = backend.place(block, argument)
        return placed[id(argument)] if block is not None else argument

    return replace(
        workload,
        inputs=map_leaves(place, workload.inputs, captured.inputs),
        targets=map_leaves(place, workload.targets, captured.targets),
    )
