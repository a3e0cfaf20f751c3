"""Ratel (LoHan): updates on the processor on a gradient's arrival; one rule swaps or recomputes activations.

Liao et al., "LoHan: Low-Cost High-Performance Framework to Fine-Tune 100B Model on a Consumer GPU", ICDE 2025, in
earlier versions Fuyou and Ratel. States of the model visit the GPU from the host, as in ZeRO-Infinity; in addition:

- Active gradient offloading: a gradient leaves when it is made, and the processor updates its weights at once, beside
  the backward pass. Results are those of an update behind it, as weights are used up by then.
- Holistic traffic-aware activation swapping: what one block of the network hands to the next always leaves. Of what a
  block keeps within itself, that with the most operations for each byte leaves first, as recomputing it would cost the
  most; the rest is recomputed. How much leaves minimizes the time of a step: in each pass the longest of the GPU's
  computation, recomputation included, the copies in both directions, and in the backward pass the updates.

Readings. A block of the network is a stage of the forward pass that hands a single activation on (`strategies.chain`),
which in a transformer is half a layer, as in the published program. Operations for each byte are seconds for each byte,
by the cost model. Masks of dropout, which cannot be made again, leave as well. What a program recomputes itself is not
taken over. A step that clips all gradients together has its updates behind the backward pass, where the graph has them.
`deferred_share` is GreedySnake's: that part of the updates runs beside the next step's forward pass instead.

Left out: the profiling of a first step, which the cost model stands for, and the order of requests to the disks, which
are the disk tier's.

Not `zero_infinity`, which updates behind the backward pass and recomputes what the program does; not `capuchin`, which
evicts only what memory lacks.
"""

from collections.abc import Sequence
from itertools import accumulate

from membench.core.checks import SHARE, check
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import AFTER_THE_LOSS, Role, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.deferred import deferred_updates
from membench.planning.rewrites.recompute import Repeatable, Segment, recompute
from membench.planning.rewrites.rewrite import join_convolution_backward, update_on_host
from membench.planning.uses import saved_for_backward
from membench.strategies.base import Strategy
from membench.strategies.chain.stages import Chain
from membench.strategies.host_states import (
    DEEPSPEED_BUCKET_BYTES,
    Leaving,
    Visits,
    applied_gradients,
    last_touched_by,
    states_on_host,
)


class Ratel(Strategy):
    """Ratel: updates beside the backward pass, activations swapped or recomputed by one rule (Liao et al. 2025).

    Args:
        ahead: operators with weights or swapped activations for which these are brought before they are needed.
        bucket_bytes: size of gradients and activations that the device holds while they leave.
        deferred_share: share of the weights whose update runs beside the next step's forward pass; see `defer_updates`.
    """

    name = "ratel"
    moves_weights = True

    def __init__(self, ahead: int = 3, bucket_bytes: int = DEEPSPEED_BUCKET_BYTES, deferred_share: float = 0.0) -> None:
        check(SHARE, deferred_share=deferred_share)
        self._ahead = ahead
        self._bucket_bytes = bucket_bytes
        self._deferred_share = deferred_share

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = join_convolution_backward(graph, cost)
        swapping = Swapping(graph, cost)
        graph = recompute(Repeatable(graph, cost), swapping.segments())
        kept = saved_for_backward(graph) & {b.index for b in graph.blocks if b.role in _ACTIVATIONS}
        graph = states_on_host(graph, self._deferred_share)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        at_home = {block.index for block in graph.blocks if block.host_location}
        passes = [task for task in graph.tasks if not task.on_host]
        forward = [task for task in graph.tasks if task.phase not in AFTER_THE_LOSS]
        deferred = {task.index for task in deferred_updates(graph)}
        finished = last_touched_by(passes, applied_gradients(graph))
        finished |= last_touched_by(forward, frozenset(kept))
        leaving = Leaving(builder, self._bucket_bytes)
        visits = Visits(builder, passes, at_home, kept, self._ahead, reuse_bytes=0)
        for task in graph.tasks:
            if task.index in deferred:
                continue  # issued before a weight of it visits
            if task.on_host:
                leaving.free_now(task.writes)
                builder.compute(task)
                continue
            visits.begin(task)
            builder.compute(task)
            visits.end(task, leaving)
            leaving.send(finished.get(task.index, ()))
            leaving.free_others()
            if task is forward[-1]:
                leaving.finish()
        leaving.finish()
        return builder.finish()


_ACTIVATIONS = frozenset({Role.ACTIVATION, Role.INTERNAL})


class Swapping:
    """What leaves of the activations, and what is recomputed.

    Args:
        graph: before weights and states have a home in host memory.
    """

    def __init__(self, graph: TaskGraph, cost: CostModel) -> None:
        self._cost = cost
        self._chain = Chain(graph, cost)
        self._units = self._chain.problem.units
        handed_on = {self._chain.problem.unit_of[s.output] for s in self._chain.stages if s.output is not None}
        within = [
            unit
            for stage in self._chain.stages
            for unit in stage.units - handed_on
            if stage.stored.intersection(self._units[unit].blocks)
        ]
        within.sort(key=lambda unit: (-self._units[unit].remake_s / self._units[unit].size_bytes, unit))
        self._always = handed_on
        updates = [task for task in update_on_host(graph).tasks if task.on_host]
        weights = {b for task in updates for b in task.writes if graph.blocks[b].role is Role.WEIGHT}
        self._weight_bytes = graph.size_bytes(weights)
        self._updates_s = sum(map(cost.host_task_time_s, updates))
        self._swapped = {*handed_on, *within[: self._best(within)]}

    def segments(self) -> list[Segment]:
        """Return what each stage recomputes, once for all of its backward pass."""
        dropped = (
            frozenset(block for unit in stage.units - self._swapped for block in self._units[unit].blocks)
            for stage in self._chain.stages
        )
        return [Segment(blocks) for blocks in dropped if blocks]

    def _best(self, within: Sequence[int]) -> int:
        """Return how many units, the first ones, leave in the fastest step; of equals the fewest."""
        sizes_bytes = [0, *accumulate(self._units[unit].size_bytes for unit in within)]
        saved_s = [0.0, *accumulate(self._units[unit].remake_s for unit in within)]
        times_s = [
            self._step_time_s(size_bytes, saved_s[-1] - again_s)
            for size_bytes, again_s in zip(sizes_bytes, saved_s, strict=True)
        ]
        return times_s.index(min(times_s))

    def _step_time_s(self, within_bytes: int, again_s: float) -> float:
        """Return a step's seconds if that much of what blocks keep within leaves, and the rest is made again."""
        cost, stages, weight_bytes = self._cost, self._chain.stages, self._weight_bytes
        swapped_bytes = within_bytes + sum(self._units[unit].size_bytes for unit in self._always)
        forward_s = max(
            sum(stage.forward_s for stage in stages),
            cost.offload_time_s(swapped_bytes),
            cost.prefetch_time_s(weight_bytes),
        )
        backward_s = max(
            sum(stage.backward_s for stage in stages) + again_s,
            cost.prefetch_time_s(swapped_bytes + weight_bytes),
            cost.offload_time_s(weight_bytes),
            self._updates_s,
        )
        return forward_s + backward_s
