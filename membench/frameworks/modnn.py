"""moDNN's own framework over cuDNN and cuBLAS (Chen et al., IEEE TPDS 2019, Section 7).

The text gives the memory model and no sources. Each layer has an output Y and an error of the same size; weights and
their increments stay; convolutions have a workspace. cuDNN has the signatures that Torch7's layers have, so those are
its layers here. Beyond them:

- Activation functions are in place, and their derivative is taken from Y = f(Z); that Z is not kept is our reading.
- Batch norm has no output of its own. That is derived: the errors and outputs of ResNet-34's convolutions are 6.8 GiB at
  the paper's batch of 256, and the network is said to fit in 12 GB. How its backward gets along is not said; here it
  writes onto the convolution's output, keeps the batch's mean and inverse deviation, and reads its output. Time counts.
- Dropout is not mentioned; here in place, with a mask.
- A sum hands its error to both branches as it is. Where a map has several readers, their errors are summed up in one of
  them: Equation 2's sum over all successors, which cuDNN adds onto what is there.

Nothing is outside of the graph's blocks: the text counts data, weights and workspaces.
"""

from dataclasses import replace
from typing import ClassVar

from membench.core.task_graph import TaskGraph
from membench.frameworks.base import Framework
from membench.frameworks.layers import LayerType
from membench.frameworks.lowering import lower_layers
from membench.frameworks.torch7 import BATCH_NORM, DROPOUT, SUM, TORCH7

_CHANGED: dict[LayerType, LayerType] = {
    BATCH_NORM: replace(
        BATCH_NORM, name="batch norm", may_be_in_place=True, reads_input=False, reads_output=True
    ),
    DROPOUT: replace(DROPOUT, name="dropout", may_be_in_place=True),
    SUM: replace(SUM, name="sum", hands_on=2),
}

MODNN = replace(
    TORCH7,
    framework="moDNN",
    types=tuple(_CHANGED.get(layer_type, layer_type) for layer_type in TORCH7.types),
    sums_in_place=True,
)


class MoDNN(Framework):
    """moDNN's framework, without the strategy."""

    name: ClassVar[str] = "modnn"

    def lower(self, graph: TaskGraph) -> TaskGraph:
        return lower_layers(graph, MODNN)
