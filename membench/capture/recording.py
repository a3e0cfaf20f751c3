"""What a trace has recorded of a step."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from membench.capture.lifetimes import KeptNumber
from membench.core.graph.call import Value
from membench.core.graph.task_graph import Block, Task
from membench.core.step.opened import Opened


@dataclass(frozen=True)
class Recording:
    """The step as it was issued.

    Attributes:
        constants: tensors that the model made, or holds outside its parameters and buffers, by block.
        loss: None in a step that returns the module's output.
        gradients: `Value` of each trained weight's gradient, None where the loss does not depend on it.
        completed: the number of tasks recorded when autograd completed a weight's gradient, by name and in order.
        wrappers: gradients that are wrapper subclasses, by weight, without data; the `Value` is that of what they are
            stored in.
        output: the module's output with `Value` in place of tensors, in a step that returns it.
        held: blocks of the module's output that the program holds in a step that returns the loss.
        output_gradients, input_gradients: see `TaskGraph`.
        weights, buffers: blocks by qualified name.
        inputs, targets: blocks in the order of the workload's arguments; see `CapturedStep`.
        objects_after: see `TaskGraph`.
        depends_on_values: see `TaskGraph`.
        given_up: blocks of inputs that neither objects nor the output hold after the step.
        releases, numbers: see `Lifetimes`.
        sums, stopped: see `Recorder`.
        on_cpu: whether the kernels are the CPU's.
    """

    blocks: list[Block]
    tasks: list[Task]
    layers: list[str]
    constants: dict[int, Tensor]
    loss: Value | None
    gradients: dict[str, Value | None]
    completed: dict[str, int]
    wrappers: dict[str, Tensor]
    output: Any
    held: frozenset[int]
    output_gradients: list[tuple[Value, Value]]
    input_gradients: list[Value | None]
    weights: dict[str, int]
    buffers: dict[str, int]
    inputs: list[int | None]
    targets: list[int | None]
    objects_after: tuple[Opened, ...]
    given_up: frozenset[int]
    depends_on_values: bool
    releases: tuple[tuple[int, int], ...]
    numbers: tuple[KeptNumber, ...]
    sums: frozenset[int]
    stopped: frozenset[int]
    on_cpu: bool
