"""Caffe's allocation: activations and gradients of the whole network, for the whole run.

Layrub, Table 2 ("a whole network (d+g)"); vDNN, Section 2.3 (its baseline, which shares the buffers of gradients). All
memory is allocated before the first step and never given back, with one workspace for each stream, as large as its
largest; so average and peak are equal. Partial gradients of shared weights are an exception: Caffe adds onto the
weight's gradient, so they share buffers of their own in turn. Not `eager`, where a block is freed after its last use.
"""

from collections.abc import Sequence

from membench.core.checks import choice
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Mode, Role, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.algorithms import Preference, prefer
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import FixedPool, allocated
from membench.planning.region import Region, plan_region
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand
from membench.strategies.streams import compute_on_streams, gradient_stream


class NetworkWide(Strategy):
    """Caffe's allocation of the whole network for the whole run (Layrub, Table 2; vDNN, Section 2.3).

    Args:
        gradient_streams: run a convolution's gradients in parallel (Layrub 4.3).
        shared_gradients: gradients of activations share buffers as large as the largest in turn (vDNN 2.3).
        rounds_allocations: each block is an allocation of its own, as the CUDA driver rounds it up; Caffe's are.
        algorithms: the fastest, or those without workspace: base(p) and base(m) of vDNN; None: the framework's own.
    """

    name = "network_wide"
    plans_for_budgets = False
    modes = frozenset(Mode)

    def __init__(
        self,
        gradient_streams: bool = False,
        shared_gradients: bool = False,
        rounds_allocations: bool = False,
        algorithms: Preference | None = None,
    ) -> None:
        self._gradient_streams = gradient_streams
        self._shared_gradients = shared_gradients
        self._rounds_allocations = rounds_allocations
        self._algorithms = choice(Preference, "algorithms", algorithms) if algorithms else None

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        if self._algorithms:
            graph = prefer(graph, cost, self._algorithms)
        of_activations = {Role.GRADIENT} if self._shared_gradients else set()
        region = _shared_buffers(graph, frozenset({Role.PARTIAL_GRADIENT, *of_activations}))
        streams = [gradient_stream(task, separate=self._gradient_streams) for task in graph.tasks]
        total_bytes = _total_bytes(graph, region, streams)
        if self._rounds_allocations:
            total_bytes += _lost_to_rounding_bytes(graph, region)
        pool = FixedPool(total_bytes)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes, region=region, pool=pool)
        for task in graph.tasks:
            compute_on_streams(builder, task, separate=self._gradient_streams, barriers=False)
            for block in {*task.reads, *task.writes}:
                if region.piece_of(block) is not None and builder.is_dead(block):
                    builder.free(block)
        return builder.finish()


def _shared_buffers(graph: TaskGraph, roles: frozenset[Role]) -> Region:
    sharing = {block.index for block in graph.blocks if block.role in roles}
    if not sharing:
        return Region((), {})
    on_demand = ScheduleBuilder(NetworkWide.name, graph, budget_bytes=None)
    compute_on_demand(on_demand, graph.tasks)
    return plan_region(on_demand.finish(), sharing)


def _total_bytes(graph: TaskGraph, region: Region, streams: Sequence[str]) -> int:
    """Return the bytes of all blocks, and of a workspace for each stream.

    Args:
        streams: the stream of each task.
    """
    created = (block for task in graph.tasks for block in task.creates)
    own_bytes = graph.size_bytes(block for block in created if region.piece_of(block) is None)
    workspaces: dict[str, int] = {}
    for task, stream in zip(graph.tasks, streams, strict=True):
        workspaces[stream] = max(workspaces.get(stream, 0), task.workspace_bytes)
    return own_bytes + region.total_bytes + sum(workspaces.values())


def _lost_to_rounding_bytes(graph: TaskGraph, region: Region) -> int:
    created = (block for task in graph.tasks for block in task.creates)
    sizes = [graph.blocks[block].size_bytes for block in created if region.piece_of(block) is None]
    return sum(allocated(size) - size for size in (*sizes, *region.piece_bytes))
