"""Layrub: layer-centric memory reuse and data migration for training extremely deep networks.

Three strategies of the paper. Where a gradient takes its activation's space, a ReLU's backward reads a one-byte mask
(the memory-efficient ReLU of Section 4.2), because the output whose sign it needs has been overwritten:

- `LayrubIntra` (3.2): a gradient takes the space of its own layer's activation. Saves at most half; nothing is offloaded.
- `LayrubInter` (3.3): an activation is offloaded after its last reader of the forward pass and prefetched one layer
  before its backward. Activations and gradients have spaces of their own.
- `LayrubHybrid` (3.4): both. The default "Layrub" of the paper from Section 5.3 on.

The order of 3.1, weight gradient before data gradient, is the graph's own. Not vDNN, which offloads the inputs of
convolutions, searches for what to prefetch, and keeps activations and gradients apart.
"""

from itertools import zip_longest

from membench.core.cost_model import CostModel
from membench.core.schedule import Schedule
from membench.core.task_graph import Role, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrite import mask_relu
from membench.planning.uses import last_touched, saved_for_backward
from membench.strategies.base import Strategy
from membench.strategies.layrub.constant_region import kept_on_device, plan_constant_region
from membench.strategies.on_demand import compute_on_demand
from membench.strategies.streams import gradient_stream


class LayrubIntra(Strategy):
    """Layrub's intra-layer reuse on a network-wide allocation (Section 3.2).

    Args:
        gradient_streams: run a convolution's weight gradient on a stream of its own; the data gradient then
            waits for it before it takes the activation's space (the barriers of Section 4.3).
    """

    name = "layrub_intra"

    def __init__(self, gradient_streams: bool = False) -> None:
        self._gradient_streams = gradient_streams

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = mask_relu(graph, cost)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        activations_of = {layer.layer: sorted(layer.reads) for layer in graph.forward_layers}
        for layer in graph.forward_layers:
            for task in layer.tasks:
                builder.compute(task)
        for layer in graph.backward_layers:
            for task in layer.tasks:
                _reuse(builder, task, activations_of.get(layer.layer, []))
                builder.compute(task, stream=gradient_stream(task, separate=self._gradient_streams))
                for block in task.reads:  # all other memory is allocated for the whole run
                    if graph.blocks[block].role is Role.PARTIAL_GRADIENT and builder.is_dead(block):
                        builder.free(block)
        return builder.finish()


def _reuse(builder: ScheduleBuilder, task: Task, activations: list[int]) -> None:
    """Let each gradient that the task makes take the space of a dead activation of its layer (IntraLayer.reuse)."""
    sizes = builder.graph.blocks
    for gradient in task.creates:
        for data in activations:
            same_size = sizes[data].size_bytes == sizes[gradient].size_bytes
            if same_size and builder.is_resident(data) and builder.is_dead(data):
                builder.reuse(gradient, dead=data)
                break


class _Migration(Strategy):
    """Inter-layer migration.

    Args:
        fixed_region: blocks share a region of fixed pieces, as in the paper's published sources, instead of memory on
            demand; what lies outside of it stays on the device.
    """

    def __init__(self, fixed_region: bool = False) -> None:
        self._fixed_region = fixed_region

    def _migrate(self, graph: TaskGraph, budget_bytes: int | None, *, intra_layer: bool) -> Schedule:
        """Return the schedule of Algorithm 1; a fixed region is planned from what it holds on demand."""
        stays = kept_on_device(graph) if self._fixed_region else set()
        region = None
        if self._fixed_region:
            on_demand = ScheduleBuilder(self.name, graph, budget_bytes=None)
            region = plan_constant_region(
                _algorithm_1(on_demand, stays, intra_layer=intra_layer), intra_layer=intra_layer
            )
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes, region=region)
        return _algorithm_1(builder, stays, intra_layer=intra_layer)


class LayrubInter(_Migration):
    """Layrub's inter-layer migration alone (Section 3.3)."""

    name = "layrub_inter"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        return self._migrate(graph, budget_bytes, intra_layer=False)


class LayrubHybrid(_Migration):
    """Layrub's inter-layer migration with intra-layer reuse (Section 3.4)."""

    name = "layrub_hybrid"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        return self._migrate(mask_relu(graph, cost), budget_bytes, intra_layer=True)


def _algorithm_1(builder: ScheduleBuilder, stays: set[int], *, intra_layer: bool) -> Schedule:
    _forward(builder, stays)
    _backward(builder, intra_layer=intra_layer)
    return builder.finish()


def _forward(builder: ScheduleBuilder, stays: set[int]) -> None:
    """Algorithm 1, forward: offload what a layer is the last to touch while it runs; Table 3 counts references for this."""
    layers = builder.graph.forward_layers
    read_at_once = layers[-1].touches | builder.graph.backward_layers[0].reads
    saved = saved_for_backward(builder.graph) - read_at_once - stays
    for layer, offloaded in zip(layers, last_touched(layers, saved), strict=True):
        read_only = [block for block in offloaded if block not in layer.writes]
        for block in read_only:
            builder.offload(block)
        compute_on_demand(builder, layer.tasks)
        for block in offloaded:
            if block not in read_only:
                builder.offload(block)
        if offloaded:
            builder.synchronize()
        for block in offloaded:
            builder.free(block)


def _backward(builder: ScheduleBuilder, *, intra_layer: bool) -> None:
    """Algorithm 1, backward: prefetch the next layer's data while this layer runs."""
    layers = builder.graph.backward_layers
    for layer, following in zip_longest(layers, layers[1:]):
        builder.prefetch_offloaded(following.reads if following else ())
        for task in layer.tasks:
            builder.compute(task)
            if intra_layer:  # the weight gradient read the activation last: the data gradient takes its space
                builder.free_dead()
        builder.synchronize()
        builder.free_dead()
