"""Gist, lossless part: one bit for an element of a ReLU's output that only its own gradient reads (Jain et al. 2018, 3.1).

Where pooling follows a ReLU, the backward pass needs of the ReLU's output which elements are positive. EPMC names this
as usable beside its own encoding (Section 2). Not Layrub's mask, which takes a byte an element and replaces what the
backward pass reads; here the bits become a map of ones and zeros again just before, which Gist's own kernels spare.
"""

from membench.codecs.mask import BitMask
from membench.core.cost_model import CostModel
from membench.core.schedule import COMPUTE_STREAM, Schedule
from membench.core.task_graph import Phase, TaskGraph
from membench.planning.rewrite import is_backward_relu, join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.compression import compress, encodable_maps


class Gist(Strategy):
    name = "gist"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = cost.annotate(join_convolution_backward(graph))
        others = _read_beyond_signs(graph)
        codecs = {block: BitMask() for block in encodable_maps(graph) if block not in others}
        return compress(self.name, graph, budget_bytes, codecs, 1.0, stream=COMPUTE_STREAM)


def _read_beyond_signs(graph: TaskGraph) -> set[int]:
    """Return the blocks that the backward pass reads for more than gradients of ReLUs."""
    return {
        block
        for task in graph.tasks
        if task.phase is Phase.BACKWARD and not is_backward_relu(task)
        for block in task.reads
    }
