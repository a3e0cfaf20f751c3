"""SuperOffload: updates begin on the host as gradients arrive, and the last ones run on the device.

Lian, Tanaka, Ruwase, Zhang, "SuperOffload: Unleashing the Power of Large-Scale LLM Training on Superchips", ASPLOS
2026, arXiv:2509.21271; in DeepSpeed, runtime/superoffload. It is ZeRO-Offload for a device whose link to host memory is
fast:

    for each task of the forward and backward pass, on the device:
        compute it; copy gradients of weights to the host as they are made
        once a weight's gradient is there, on the CPU: update it                  (speculation, then validation)
    on the device: update the weights whose gradients are complete last, a small share of all

So the CPU works beside the backward pass, and is not behind it.

Readings, of DeepSpeed's sources and of the authors' announcement; the paper's text was not at hand. `host_share` is
``ratio`` of DeepSpeed's configuration. States of weights that the device updates stay there. Weights that the host has
updated come to the device at the beginning of the next step, as under `zero_offload`. What the program recomputes is
recomputed.

Left out: undoing. The first release of DeepSpeed's program updated before it knew the norm of all gradients, and took
updates back by arithmetic if that had to be clipped, which does not restore every bit; later ones update at the end of
a step that clips. So does this one, as a whole, where the optimizer has a hook, such as one that clips.
Casts stay where the program has them, so that gradients cross the link in its precision. Several devices.

Not `ratel`, which moves weights and activations as well.
"""

from itertools import accumulate

from membench.core.checks import SHARE, check
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Phase, Role, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.deferred import host_updates
from membench.planning.rewrites.rewrite import as_written, update_on_host
from membench.strategies.base import Strategy
from membench.strategies.host_states import (
    DEEPSPEED_BUCKET_BYTES,
    Leaving,
    applied_gradients,
    compute_as_written,
    last_touched_by,
    states_on_host,
    updates_behind,
)


class SuperOffload(Strategy):
    """SuperOffload: the host updates beside the backward pass, the device what is complete last (Lian et al. 2026).

    Args:
        host_share: part of the weights' bytes that the host updates, from 0 to 1; 0.9 in DeepSpeed's example for
            Qwen3-14B.
        bucket_bytes: size of gradients that the device holds while they leave.
    """

    name = "superoffload"
    moves_weights = True

    def __init__(self, host_share: float = 0.9, bucket_bytes: int = DEEPSPEED_BUCKET_BYTES) -> None:
        check(SHARE, host_share=host_share)
        self._host_share, self._bucket_bytes = host_share, bucket_bytes

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = _divided(as_written(graph, cost), self._host_share)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        passes = [task for task in graph.tasks if task.phase is not Phase.UPDATE]
        updates = [task for task in graph.tasks if task.phase is Phase.UPDATE]
        at_home = {block.index for block in graph.blocks if block.host_location}
        due = updates_behind([[task] for task in passes], [task for task in updates if task.on_host])
        visiting = dict.fromkeys(block for task in passes for block in (*task.reads, *task.writes) if block in at_home)
        for block in visiting:
            builder.prefetch(block)
        finished = last_touched_by(passes, applied_gradients(graph) | frozenset(visiting))
        leaving = Leaving(builder, self._bucket_bytes)
        for task, behind in zip(passes, due, strict=True):
            compute_as_written(builder, task)
            leaving.send(finished.get(task.index, ()))
            for update in behind:
                leaving.free_now(update.writes)
                builder.compute(update)
        leaving.finish()
        for update in updates:
            if not update.on_host:
                builder.compute(update)
                builder.free_dead()
        return builder.finish()


def _divided(graph: TaskGraph, host_share: float) -> TaskGraph:
    """Return the graph whose host updates a share of the weights, those whose gradients are complete first.

    Raises:
        UnsupportedStrategy: processes divide the update between them; and see `states_on_host`.
    """
    if any(task.collective for task in graph.tasks if task.phase is Phase.UPDATE):
        raise UnsupportedStrategy(
            "superoffload divides an update between host and device, which processes have divided between them; leave "
            "partition_optimizer out, or choose zero_offload"
        )
    moved = states_on_host(graph)
    written = {block: task.index for task in graph.tasks if task.phase is not Phase.UPDATE for block in task.writes}

    def complete(update: list[Task]) -> int:
        return max(written.get(block, 0) for task in update for block in task.reads)

    updates = sorted(host_updates(moved), key=complete)
    ends_bytes = list(accumulate(_weight_bytes(graph, update) for update in updates))
    most_bytes = host_share * (ends_bytes[-1] if ends_bytes else 0)
    count = min(range(len(updates) + 1), key=lambda n: abs([0, *ends_bytes][n] - most_bytes))
    chosen = {task.index for update in updates[:count] for task in update}
    return update_on_host(graph, chosen)


def _weight_bytes(graph: TaskGraph, update: list[Task]) -> int:
    return graph.size_bytes({b for task in update for b in task.writes if graph.blocks[b].role is Role.WEIGHT})
