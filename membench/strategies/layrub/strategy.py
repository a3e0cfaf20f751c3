"""Layrub: layer-centric memory reuse and data migration for training extremely deep networks.

Three strategies of the paper. Where a gradient takes its activation's space, a ReLU's backward reads a one-byte mask
(the memory-efficient ReLU of Section 4.2), because the output whose sign it needs has been overwritten:

- `LayrubIntra` (3.2): a gradient takes the space of its own layer's activation. Saves at most half; nothing is
  offloaded.
- `LayrubInter` (3.3): an activation is offloaded after its last reader of the forward pass and prefetched one layer
  before its backward. Activations and gradients have spaces of their own.
- `LayrubHybrid` (3.4): both. The default "Layrub" of the paper from Section 5.3 on.

Algorithm 1 moves every activation, read by the backward pass or not (a sum's inputs, a concatenation's): its gradient
will lie in the activation's space. Here an option, `only_needed`, leaves those copies out. The batch stays on the
device.

`reuse` of Table 3 asks for a layer's type, but the paper lists no types; here a gradient takes its activation's space
where that is as large and dead. The order of 3.1, weight gradient before data gradient, is the graph's own. Not vDNN,
which offloads the inputs of convolutions, searches for what to prefetch, and keeps activations and gradients apart.
"""

from collections.abc import Collection, Mapping
from itertools import zip_longest

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Role, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.region import Region, keep_apart
from membench.planning.rewrites.rewrite import mask_relu
from membench.planning.uses import last_touched, saved_for_backward
from membench.strategies.base import Strategy
from membench.strategies.layrub.activations import Activations
from membench.strategies.layrub.constant_region import kept_on_device, plan_constant_region, without_shared_batch
from membench.strategies.streams import compute_on_streams


class LayrubIntra(Strategy):
    """Layrub's intra-layer reuse on a network-wide allocation (Section 3.2).

    Args:
        gradient_streams: run the gradients of a convolution's weights and biases on streams of their own; the data
            gradient waits for both before it takes the activation's space (the barriers of Section 4.3).
    """

    name = "layrub_intra"
    plans_for_budgets = False

    def __init__(self, gradient_streams: bool = False) -> None:
        self._gradient_streams = gradient_streams

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = mask_relu(graph, cost)
        activations = Activations(graph)
        apart = self._run(ScheduleBuilder(self.name, graph, budget_bytes=None), activations)
        region = keep_apart(apart, _buffers_of_parts(activations))
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes, region=region)
        return self._run(builder, activations)

    def _run(self, builder: ScheduleBuilder, activations: Activations) -> Schedule:
        graph = builder.graph
        for layer in graph.forward_layers:
            for task in layer.tasks:
                builder.compute(task)
        for layer in graph.backward_layers:
            for task in layer.tasks:
                _reuse(builder, task, activations)
                compute_on_streams(builder, task, separate=self._gradient_streams, barriers=True)
                for block in task.reads:  # all other memory is allocated for the whole run
                    is_part = block in activations.of_parts
                    if (is_part or _is_partial(graph, block)) and builder.is_dead(block):
                        builder.free(block)
        return builder.finish()


def _is_partial(graph: TaskGraph, block: int) -> bool:
    return graph.blocks[block].role is Role.PARTIAL_GRADIENT


def _reuse(builder: ScheduleBuilder, task: Task, activations: Activations) -> None:
    """Let each gradient that the task makes take its activation's space, if that is dead (IntraLayer.reuse)."""
    for gradient in task.creates:
        activation = activations.of_gradients.get(gradient)
        if activation is not None and builder.is_resident(activation) and builder.is_dead(activation):
            builder.reuse(gradient, dead=activation)


def _buffers_of_parts(activations: Activations) -> Region:
    """Return the buffers of summed gradients: the first ones of all sums share one, the second ones another.

    There are as many as the sum with the fewest has (the published sources, `intralayer`).
    """
    graph = activations.graph
    sums: dict[int, list[int]] = {}
    for part, activation in activations.of_parts.items():
        sums.setdefault(activation, []).append(part)
    parts = list(zip(*sums.values(), strict=False))  # as long as the shortest
    return Region(
        tuple(max(graph.blocks[block].size_bytes for block in blocks) for blocks in parts),
        {block: buffer for buffer, blocks in enumerate(parts) for block in blocks},
    )


class _Migration(Strategy):
    """Inter-layer migration.

    Args:
        fixed_region: blocks share a region of fixed pieces, as in the paper's published sources, instead of memory on
            demand; what lies outside of it stays on the device.
        only_needed: move only what the backward pass reads, instead of all that Algorithm 1 moves.
    """

    def __init__(self, fixed_region: bool = False, only_needed: bool = True) -> None:
        self._fixed_region = fixed_region
        self._only_needed = only_needed

    def _migrate(self, graph: TaskGraph, budget_bytes: int | None, *, intra_layer: bool) -> Schedule:
        """Return the schedule of Algorithm 1; a fixed region is planned from what it holds on demand."""
        activations, region = Activations(graph), None
        migrating = saved_for_backward(graph)
        if not self._only_needed:
            inputs = activations.inputs
            migrating.update(b for layer in graph.backward_layers for b in inputs.get(layer.layer, ()))
        if self._fixed_region:
            migrating -= kept_on_device(graph)
            builder = ScheduleBuilder(self.name, graph, budget_bytes=None)
            on_demand = self._algorithm_1(builder, migrating, activations, intra_layer=intra_layer)
            region = plan_constant_region(on_demand, activations, intra_layer=intra_layer)
            graph = without_shared_batch(graph, region)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes, region=region)
        return self._algorithm_1(builder, migrating, activations, intra_layer=intra_layer)

    def _algorithm_1(
        self, builder: ScheduleBuilder, migrating: set[int], activations: Activations, *, intra_layer: bool
    ) -> Schedule:
        _forward(builder, migrating)
        self._backward(builder, activations.inputs, intra_layer=intra_layer)
        return builder.finish()

    def _backward(self, builder: ScheduleBuilder, inputs: Mapping[int, tuple[int, ...]], *, intra_layer: bool) -> None:
        """Algorithm 1, backward: prefetch the next layer's data while this layer runs."""
        layers = builder.graph.backward_layers
        for layer, following in zip_longest(layers, layers[1:]):
            if following:
                data = {*following.reads, *inputs.get(following.layer, ())}
                builder.prefetch_offloaded(b for b in data if not (self._only_needed and builder.is_dead(b)))
            for task in layer.tasks:
                builder.compute(task)
                if intra_layer:  # the weight gradient reads an activation last; the data gradient takes its space
                    _free_dead(builder, task)
            builder.synchronize()
            builder.free_dead()


class LayrubInter(_Migration):
    """Layrub's inter-layer migration alone (Section 3.3)."""

    name = "layrub_inter"
    plans_for_budgets = False

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        return self._migrate(graph, budget_bytes, intra_layer=False)


class LayrubHybrid(_Migration):
    """Layrub's inter-layer migration with intra-layer reuse (Section 3.4)."""

    name = "layrub_hybrid"
    plans_for_budgets = False

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        return self._migrate(mask_relu(graph, cost), budget_bytes, intra_layer=True)


def _forward(builder: ScheduleBuilder, migrating: set[int]) -> None:
    """Algorithm 1, forward: offload what a layer is the last to touch (references in Table 3) while it runs."""
    layers = builder.graph.forward_layers
    read_at_once = layers[-1].touches | builder.graph.backward_layers[0].reads
    for layer, offloaded in zip(layers, last_touched(layers, migrating - read_at_once), strict=True):
        read_only = [block for block in offloaded if block not in layer.writes]
        for block in read_only:
            builder.offload(block)
        for task in layer.tasks:
            builder.compute(task)
            _free_dead(builder, task, but=offloaded)
        for block in offloaded:
            if block not in read_only:
                builder.offload(block)
        if offloaded:
            builder.synchronize()
        for block in offloaded:
            builder.free(block)


def _free_dead(builder: ScheduleBuilder, task: Task, *, but: Collection[int] = ()) -> None:
    """Free what no later task touches of what this task has touched."""
    for block in dict.fromkeys((*task.reads, *task.writes)):
        if block not in but and builder.is_resident(block) and builder.is_dead(block):
            builder.free(block)
