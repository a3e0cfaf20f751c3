"""moDNN's own framework over cuDNN and cuBLAS (Chen et al., IEEE TPDS 2019, Section 7).

The text gives the memory model; no sources are published. Each layer has an output Y and an error of the same size;
weights and their increments stay; convolutions have a workspace. cuDNN has the signatures of Torch7's layers, so those
are its layers here, with these differences:

- Activation functions are in place, and their derivative is taken from Y = f(Z); that Z is not kept is our reading.
- Batch norm has no output of its own. That is derived: the errors and outputs of ResNet-34's convolutions are 6.8 GiB
  at the paper's batch of 256, and the network is said to fit in 12 GB. Its backward is not described; here it writes
  onto the convolution's output, keeps the batch's mean and inverse deviation, and reads its output. Its time is
  counted.
- Dropout is not mentioned; here in place, with a mask.
- A sum passes its error to both branches unchanged. Where an output has several readers, their errors are summed up in
  one of them: Equation 2's sum over all successors, which cuDNN accumulates in place.

All memory lies in the graph's blocks: the text counts data, weights and workspaces.
"""

from dataclasses import replace
from typing import ClassVar

from membench.core.graph.task_graph import TaskGraph
from membench.frameworks.base import Framework
from membench.frameworks.layers import LayerType
from membench.frameworks.lowering import lower_layers
from membench.frameworks.torch7 import BATCH_NORM, DROPOUT, SUM, TORCH7

_CHANGED: dict[LayerType, LayerType] = {
    BATCH_NORM: replace(BATCH_NORM, name="batch norm", may_be_in_place=True, reads_input=False, reads_output=True),
    DROPOUT: replace(DROPOUT, name="dropout", may_be_in_place=True),
    SUM: replace(SUM, name="sum", forwards_gradient_to=2),
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
