"""Workload -> TaskGraph: record the step, apply the passes, number what is left."""

from dataclasses import dataclass, replace

from torch import Tensor

from membench.capture.passes import (
    accumulate_in_place,
    drop_unused,
    mark_partial_gradients,
    weight_gradient_first,
)
from membench.capture.trace import record
from membench.task_graph import Role, TaskGraph
from membench.workload import Workload


@dataclass(frozen=True)
class CapturedStep:
    """A task graph and how its external blocks are bound to a module and its arguments.

    Attributes:
        weights, buffers: block by qualified name.
        inputs, targets: block by position, None where the argument is no tensor.
        constants: tensors by block.
    """

    graph: TaskGraph
    weights: dict[str, int]
    buffers: dict[str, int]
    inputs: tuple[int | None, ...]
    targets: tuple[int | None, ...]
    constants: dict[int, Tensor]


def capture(workload: Workload) -> CapturedStep:
    """Capture the training step of `workload`: forward, loss and the gradients of all weights.

    Runs on fake tensors: needs no data and no device memory. Time is linear in the number of operators.

    Raises:
        UnsupportedModel: the step cannot be expressed as a graph; names the layer.
    """
    recording = record(workload)
    gradients = {n: v.block for n, v in recording.gradients.items() if v is not None}
    blocks = list(recording.blocks)
    for block in gradients.values():
        blocks[block] = replace(blocks[block], role=Role.WEIGHT_GRADIENT)
    for name, block in gradients.items():
        blocks[block] = replace(blocks[block], name=f"{name}:gradient")
    blocks[recording.loss.block] = replace(blocks[recording.loss.block], role=Role.LOSS, name="loss")
    tasks = drop_unused(recording.tasks, blocks)
    mark_partial_gradients(tasks, blocks)
    tasks = weight_gradient_first(tasks, blocks)
    tasks = accumulate_in_place(tasks, blocks)
    first = next((item for item in workload.inputs if isinstance(item, Tensor)), None)
    graph = TaskGraph(
        name=workload.name,
        batch_size=first.shape[0] if first is not None and first.dim() else 1,
        blocks=tuple(blocks),
        tasks=tuple(replace(task, index=index) for index, task in enumerate(tasks)),
        layers=tuple(recording.layers),
        loss=recording.loss,
        gradients=tuple(recording.gradients.items()),
    )
    return CapturedStep(
        graph=graph,
        weights=recording.weights,
        buffers=recording.buffers,
        inputs=tuple(recording.inputs),
        targets=tuple(recording.targets),
        constants=recording.constants,
    )
