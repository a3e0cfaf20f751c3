"""GreedySnake: all micro-batches of a layer before the next layer; the layer's update beside the backward pass.

Yue, Yin et al., "GreedySnake: Accelerating SSD-Offloaded LLM Training with Efficient Scheduling and Optimizer Step
Overlapping", arXiv:2512.17570, 2025. Weights, gradients and states of the optimizer are in host memory and on disks.
A step in micro-batches one after another moves the weights of all layers twice for each micro-batch; here (vertical
scheduling):

    for each layer of the forward pass:
        bring its weights, once; compute all micro-batches; their checkpoints leave
    for each layer of the backward pass:
        bring its weights, once; recompute and compute all micro-batches, and add up their gradients
        the sums leave; on the CPU: update the layer's weights, beside the layers that follow
    a share of the updates waits for the next step: it runs beside that one's forward pass, before its weights visit

Readings, of the paper's abstract and of descriptions of it; its text was not at hand. A layer is a block of the
network, an entry of a list of modules; what lies between two, such as head and loss, is one as well. Checkpoints are
what one layer hands on to another. The order of the micro-batches turns round from layer to layer in the forward pass,
so that the output of the last one need not leave; in the backward pass it does not, as gradients would add up in
another order than in the program. Gradients that pass from layer to layer stay on the device. Weights of one layer are
brought ahead, as with two buffers. That states lie on disks is not this method's decision here: the pass that inserts
the disk tier moves what host memory cannot hold. What a program recomputes itself is not taken over.

Left out: the linear program that chooses the share of the updates that wait, which is given here and by default 0, and
what lies on disks; several GPUs.

Not `zero_infinity`, whose micro-batches are passes of their own, and which updates behind the last one.
"""

from membench.core.checks import SHARE, check
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.strategies.base import Strategy
from membench.strategies.layer_window import BUCKET_BYTES, in_host_memory, pass_through


class GreedySnake(Strategy):
    """GreedySnake: micro-batches layer by layer, with states in host memory (Yue et al. 2025).

    Args:
        ahead: layers whose weights are brought before they are needed.
        bucket_bytes: size of gradients and checkpoints that the device holds while they leave.
        deferred_share: the paper's alpha, a share of the weights whose update runs beside the next step's forward pass.
    """

    name = "greedysnake"
    layer_by_layer = True
    moves_weights = True

    def __init__(self, ahead: int = 1, bucket_bytes: int = BUCKET_BYTES, deferred_share: float = 0.0) -> None:
        check(SHARE, deferred_share=deferred_share)
        self._ahead, self._bucket_bytes, self._deferred_share = ahead, bucket_bytes, deferred_share

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = in_host_memory(graph, cost, deferred_share=self._deferred_share)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        pass_through(builder, self._ahead, self._bucket_bytes)
        return builder.finish()
