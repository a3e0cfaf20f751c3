"""MegaTrain, and SlideFormer: everything lives in host memory; a window of layers slides over the network.

"MegaTrain: Full Precision Training of 100B+ Parameter Large Language Models on a Single GPU", arXiv:2604.05091, 2026;
Yang, Wen, "An Efficient Heterogeneous Co-Design for Fine-Tuning on a Single GPU" (SlideFormer), DAC 2026,
arXiv:2603.16428:

    for each layer of the forward and then of the backward pass:
        bring the weights of the next one to the other of two buffers
        compute this one, in the backward pass again from its checkpoint; checkpoints leave, and come back
        its gradients leave; on the CPU: update its weights, beside the layers that follow

Readings, of the papers' abstracts and of the descriptions of their programs. The two are one method here. Both stream
layers through a double buffer, recompute each from its checkpoint, and let gradients leave layer by layer. The update
on the CPU beside the backward pass (`updates_beside`) is SlideFormer's description; MegaTrain's released program clips
all gradients and updates behind the backward pass. It recomputes four layers together, here each by itself. A layer is
a block of the network, an entry of a list of modules; what lies between two, such as embedding and head, visits in the
same way. Checkpoints are what one layer hands on to another, and none are skipped. A program in half precision has its
weights in single precision among its optimizer's states. What a program recomputes itself is not taken over.

Left out: MegaTrain's templates of layers in place of autograd's graph, which change no copy and no kernel;
SlideFormer's fused kernels, which a program calls itself, and its disks, which are the disk tier's.

Not `zero_infinity`, whose window is of operators, and which updates behind the backward pass; not `greedysnake`, for
which a layer computes all micro-batches while it is there.
"""

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.strategies.base import Strategy
from membench.strategies.layer_window import BUCKET_BYTES, in_host_memory, pass_through


class MegaTrain(Strategy):
    """MegaTrain and SlideFormer: layers stream through two buffers; all states are in host memory.

    arXiv:2604.05091 and arXiv:2603.16428.

    Args:
        ahead: layers whose weights are brought before they are needed: 1 for two buffers.
        bucket_bytes: size of gradients and checkpoints that the device holds while they leave.
        updates_beside: a layer is updated beside the backward pass of the layers that follow, and not behind it.
    """

    name = "megatrain"
    moves_weights = True

    def __init__(self, ahead: int = 1, bucket_bytes: int = BUCKET_BYTES, updates_beside: bool = True) -> None:
        self._ahead, self._bucket_bytes, self._updates_beside = ahead, bucket_bytes, updates_beside

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = in_host_memory(graph, cost, updates_beside=self._updates_beside)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        pass_through(builder, self._ahead, self._bucket_bytes, updates_beside=self._updates_beside)
        return builder.finish()
