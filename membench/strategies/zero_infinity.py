"""ZeRO-Infinity on one GPU: weights visit the device operator by operator; everything else is in host memory.

Rajbhandari et al., "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning", SC 2021; before,
DeepSpeed's ZeRO-3 Offload. Weights, gradients, states of the optimizer and activation checkpoints all leave the GPU
(Section 5.1):

    for each operator of the forward and backward pass:
        bring the weights of the next three operators         (dynamic prefetching, Section 6.2)
        compute it; give its weights back; copy to the host the gradients that it has finished, and what is kept for
        later
    for each part of the weights, on the CPU: update it

Readings. The program recomputes as it is written: its activation checkpoints are what the forward pass keeps for the
backward pass, and are offloaded (Section 5.1.2), unless `offload_activations` is off. Weights stay between two uses
that are not further apart than ``stage3_max_reuse_distance`` of DeepSpeed's configuration, which is given in weights
there and in bytes here. The update follows the backward pass, as clipping needs all gradients; with `deferred_share`,
which is GreedySnake's and not this paper's, a part of it runs beside the next step's forward pass. That the optimizer's
states lie on disks, and weights in the end, is not this method's decision here: the pass that inserts the disk tier
moves what host memory cannot hold.

Left out: partitioning over GPUs (Section 6.1), of which one is simulated, with the node's rates; tiling of single
operators (Section 5.1.3), which changes the program.

Not `zero_offload`, whose weights stay on the device; not `ratel`, which updates in the backward pass and chooses what
to recompute.
"""

from itertools import zip_longest

from membench.core.checks import SHARE, check
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import AFTER_THE_LOSS, Phase, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.rewrite import as_written
from membench.strategies.base import Strategy
from membench.strategies.host_states import (
    DEEPSPEED_BUCKET_BYTES,
    Leaving,
    Visits,
    applied_gradients,
    checkpoints,
    compute_as_written,
    last_touched_by,
    states_on_host,
    update,
)


class ZeroInfinity(Strategy):
    """ZeRO-Infinity: weights visit the device; gradients, states and checkpoints are in host memory.

    Rajbhandari et al. 2021.

    Args:
        ahead: operators with weights for which weights are brought before they are needed (Section 6.2).
        reuse_bytes: weights stay if their next use is no more bytes of weights away; DeepSpeed's default, 1e9 in half
            precision.
        bucket_bytes: size of gradients and checkpoints that the device holds while they leave.
        offload_activations: what the program's recomputation starts from is in host memory meanwhile (Section 5.1.2).
        deferred_share: share of the weights whose update runs beside the next step's forward pass; see `defer_updates`.
    """

    name = "zero_infinity"
    moves_weights = True

    def __init__(
        self,
        ahead: int = 3,
        reuse_bytes: int = 2_000_000_000,
        bucket_bytes: int = DEEPSPEED_BUCKET_BYTES,
        offload_activations: bool = True,
        deferred_share: float = 0.0,
    ) -> None:
        check(SHARE, deferred_share=deferred_share)
        self._ahead = ahead
        self._reuse_bytes = reuse_bytes
        self._bucket_bytes = bucket_bytes
        self._offload_activations = offload_activations
        self._deferred_share = deferred_share

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = states_on_host(as_written(graph, cost), self._deferred_share)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        forward = [task for task in graph.tasks if task.phase not in AFTER_THE_LOSS]
        passes = [task for task in graph.tasks if task.phase is not Phase.UPDATE]
        at_home = {block.index for block in graph.blocks if block.host_location}
        kept = checkpoints(graph) if self._offload_activations else frozenset[int]()
        finished = last_touched_by(passes, applied_gradients(graph))
        finished |= last_touched_by(forward, kept)
        leaving = Leaving(builder, self._bucket_bytes)
        visits = Visits(builder, passes, at_home, kept, self._ahead, self._reuse_bytes)
        for task, following in zip_longest(passes, passes[1:]):
            visits.begin(task)
            compute_as_written(builder, task)
            visits.end(task, leaving)
            leaving.send(finished.get(task.index, ()))
            if following is None or (following.phase in AFTER_THE_LOSS) != (task.phase in AFTER_THE_LOSS):
                leaving.finish()
        update(builder, (task for task in graph.tasks[passes[-1].index :] if task.phase is Phase.UPDATE))
        return builder.finish()
