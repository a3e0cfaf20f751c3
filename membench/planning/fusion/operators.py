"""What a fused task can have: operators that Inductor computes in loops of its own, with their effects."""

import torch

from membench.core.graph.call import Call, Value, resolve_operator, values_in
from membench.core.graph.fused_calls import BATCH_NORMS
from membench.core.graph.task_graph import EXTERNAL_ROLES, Phase, Task, TaskGraph

_POINTWISE = {
    "_to_copy", "copy_", "masked_fill_", "fill_", "zeros_like", "ones_like", "full_like", "threshold_backward",
    "hardtanh_backward", "clone", "constant_pad_nd", "roll", "hardswish_backward", "leaky_relu_backward",
    "elu_backward", "softplus_backward", "mse_loss_backward", "smooth_l1_loss_backward", "select_backward",
    "slice_backward", "select_scatter", "slice_scatter",
}  # fmt: skip
"""Operators that compute, or move, each element alone, without torch's tag for that."""

_POINTWISE_ON_GPUS = {"cat", "stack"}
"""Of parts that are pointwise, each element is computed where it goes.

On the CPU Inductor writes each part by itself (``torch._inductor.lowering.cat``), and what reads the result is another
kernel.
"""

_NEVER_AGAIN = {"cat", "stack", "constant_pad_nd", "select_scatter", "slice_scatter"}
"""Pointwise operators that do not run again in the backward pass.

``torch._functorch.partitioners`` has a list of those that may.
"""

_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "var", "var_mean", "linalg_vector_norm", "_softmax", "_softmax_backward_data",
    "_log_softmax", "_log_softmax_backward_data", "native_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm",
    "cudnn_batch_norm_backward", "native_layer_norm", "native_layer_norm_backward", "native_group_norm",
    "native_group_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward",
    "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "mse_loss", "smooth_l1_loss",
}  # fmt: skip
"""Operators that Inductor computes by loops of its own, some of them reductions."""


def is_fusible(task: Task, graph: TaskGraph, *, on_cpu: bool = False) -> bool:
    """Return whether a task can be part of a program.

    Args:
        on_cpu: that program is compiled for the CPU.
    """
    call = task.call
    if call is None or task.random or task.collective or task.on_host or task.phase is Phase.UPDATE:
        return False
    if not call.operator.startswith("aten.") or not (_name(call) in _REDUCTIONS or is_pointwise(task)):
        return False
    if on_cpu and _name(call) in _POINTWISE_ON_GPUS:
        return False
    updated = set(task.writes) - set(task.creates)
    if call.operator not in BATCH_NORMS and any(graph.blocks[block].role in EXTERNAL_ROLES for block in updated):
        return False
    values = values_in((call.args, call.kwargs, call.outputs))
    if any(value.conjugated or value.negated or value.dtype.is_complex for value in values):
        return False
    outputs = [value for value in call.outputs if value is not None]
    makes_each = sorted(value.block for value in outputs) == sorted(task.creates)
    return makes_each and all(_fills(value, graph) for value in values if value.block in task.writes)


def is_cheap(task: Task) -> bool:
    """Return whether a task may run again in a kernel of the backward pass.

    The logarithm of softmax may, too: as Inductor has it, its last part is pointwise, of two numbers of each row that
    are kept.
    """
    return task.call is not None and (is_pointwise(task) or _name(task.call) == "_log_softmax")


def is_run_again(task: Task) -> bool:
    """Return whether ``torch.compile`` by default runs such a task again in a kernel of the backward pass."""
    return is_cheap(task) and task.call is not None and _name(task.call) not in _NEVER_AGAIN


def is_pointwise(task: Task) -> bool:
    """Return whether a task computes each element alone."""
    call = task.call
    return call is not None and (
        _name(call) in _POINTWISE | _POINTWISE_ON_GPUS or torch.Tag.pointwise in resolve_operator(call).tags
    )


def _name(call: Call) -> str:
    return call.operator.split(".")[1]


def _fills(value: Value, graph: TaskGraph) -> bool:
    """Return whether a value is the whole of its block, or of a tensor of the caller."""
    block = graph.blocks[value.block]
    return not value.offset and value.extent_bytes == block.size_bytes and 0 not in value.stride


def is_alone_compiled(task: Task) -> bool:
    """Return whether a fusible task is compiled alone as well: a pointwise operator is a single kernel as it is."""
    return task.call is not None and _name(task.call) in _REDUCTIONS
