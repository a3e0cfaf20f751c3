"""Gist, lossless part: a bit per element of a ReLU's output that only the ReLU's gradient reads.

Jain et al. 2018, Section 3.1.

Where pooling follows a ReLU, the backward pass needs only the signs of the ReLU's output. EPMC names this as usable in
addition to its own encoding (Section 2). Not Layrub's mask, which takes a byte per element and replaces what the
backward pass reads; here the bits are decoded to an activation of ones and zeros just before, which Gist's own kernels
avoid.
"""

from membench.codecs.mask import BitMask
from membench.core.graph.schedule import COMPUTE_STREAM, Schedule
from membench.core.graph.task_graph import Phase, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.rewrites.rewrite import is_backward_relu, join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.compression import compress, encodable_activations


class Gist(Strategy):
    """Gist's Binarize: one bit per element of a ReLU's output where its signs are enough.

    Jain et al. 2018, Section 3.1.
    """

    name = "gist"
    plans_for_budgets = False

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = join_convolution_backward(graph, cost)
        others = _read_beyond_signs(graph)
        codecs = {block: BitMask() for block in encodable_activations(graph) if block not in others}
        return compress(self.name, graph, budget_bytes, codecs, 1.0, stream=COMPUTE_STREAM)


def _read_beyond_signs(graph: TaskGraph) -> set[int]:
    """Return the blocks that the backward pass reads for more than gradients of ReLUs."""
    return {
        block
        for task in graph.tasks
        if task.phase is Phase.BACKWARD and not is_backward_relu(task)
        for block in task.reads
    }
