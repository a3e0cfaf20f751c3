"""SuperNeurons' own framework, of which the paper has the layers: each has an output and a gradient of its own.

The layers call cuDNN, as Torch7's do, with one difference: a ReLU is not in place, because the paper counts it among
the layers with tensors of their own, and its backward hands input and output to cuDNN. A weight has a momentum, as in
the authors' release.
"""

from dataclasses import replace
from typing import ClassVar

from membench.core.graph.task_graph import Kind, TaskGraph
from membench.frameworks.base import Framework
from membench.frameworks.layers import LayerType
from membench.frameworks.lowering import lower_layers
from membench.frameworks.torch7 import RELU, TORCH7

ACTIVATION = LayerType("ACT", Kind.RELU, RELU.marks, reads_input=True, reads_output=True)
LIBRARY = replace(
    TORCH7,
    framework="SuperNeurons",
    types=tuple(ACTIVATION if each is RELU else each for each in TORCH7.types),
    weight_states=("momentum",),
)


class SuperNeuronsLayers(Framework):
    """SuperNeurons' layers over cuDNN; all their memory lies in the graph's blocks."""

    name: ClassVar[str] = "superneurons"

    def lower(self, graph: TaskGraph) -> TaskGraph:
        return lower_layers(graph, LIBRARY)
