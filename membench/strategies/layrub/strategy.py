"""Layrub: layer-centric memory reuse and data migration for training extremely deep networks.

Three strategies of the paper. Where a gradient takes its activation's space, a ReLU's backward reads a one-byte mask
(the memory-efficient ReLU of Section 4.2), because the output whose sign it needs is gone by then:

- `LayrubIntra` (3.2): a gradient takes the space of its own layer's activation. Saves at most half; nothing moves.
- `LayrubInter` (3.3): an activation leaves for the host after its last reader of the forward pass and comes back
  one layer before its backward. Activations and gradients have spaces of their own.
- `LayrubHybrid` (3.4): both. The default "Layrub" of the paper from Section 5.3 on.

The order of 3.1, weight gradient before data gradient, is the graph's own. Not vDNN, which offloads the inputs of
convolutions, searches for what to prefetch, and keeps activations and gradients apart.
"""

from collections import Counter
from itertools import zip_longest

from membench.core.cost_model import CostModel
from membench.core.schedule import Schedule
from membench.core.task_graph import LayerTasks, Role, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrite import mask_relu
from membench.strategies.base import Strategy
from membench.strategies.layrub.constant_region import kept_on_device, plan_constant_region
from membench.strategies.on_demand import compute_on_demand
from membench.strategies.streams import gradient_stream


class Tracer:
    """Counts for each block the forward layers that still have to touch it (Table 3)."""

    def __init__(self, graph: TaskGraph) -> None:
        self._references: Counter[int] = Counter()
        for layer in graph.forward_layers:
            self._references.update(layer.touches)  # addRef

    def will_finish(self, layer: LayerTasks) -> list[int]:
        """Return the blocks that no layer after this one touches in the forward pass."""
        return sorted(block for block in layer.touches if self._references[block] == 1)

    def finish(self, layer: LayerTasks) -> None:
        self._references.subtract(layer.touches)  # subRef


class LayrubIntra(Strategy):
    """Intra-layer reuse on a network-wide allocation.

    Args:
        gradient_streams: run a convolution's weight gradient on a stream of its own; the data gradient then
            waits for it before it takes the activation's space (the barriers of Section 4.3).
    """

    name = "layrub_intra"

    def __init__(self, gradient_streams: bool = False) -> None:
        self._gradient_streams = gradient_streams

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = cost.annotate(mask_relu(graph))
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        activations_of = {layer.layer: sorted(layer.reads) for layer in graph.forward_layers}
        for layer in graph.forward_layers:
            for task in layer.tasks:
                builder.compute(task)
        for layer in graph.backward_layers:
            for task in layer.tasks:
                _reuse(builder, task, activations_of.get(layer.layer, []))
                builder.compute(task, stream=gradient_stream(task, separate=self._gradient_streams))
                _free_partial_gradients(builder, task)
        return builder.finish()


def _free_partial_gradients(builder: ScheduleBuilder, task: Task) -> None:
    """Free what the task has added to a shared weight's gradient, where the network's allocation is for good."""
    for block in task.reads:
        if builder.graph.blocks[block].role is Role.PARTIAL_GRADIENT and builder.is_dead(block):
            builder.free(block)


def _reuse(builder: ScheduleBuilder, task: Task, activations: list[int]) -> None:
    """Let each gradient that the task makes take the space of a dead activation of its layer (IntraLayer.reuse)."""
    sizes = builder.graph.blocks
    for gradient in task.creates:
        for data in activations:
            same_size = sizes[data].size_bytes == sizes[gradient].size_bytes
            if same_size and builder.is_resident(data) and builder.is_dead(data):
                builder.reuse(gradient, dead=data)
                break


class LayrubInter(Strategy):
    """Inter-layer migration alone.

    Args:
        fixed_region: blocks share a region of fixed pieces, as in the paper's published sources, instead of memory on
            demand; what does not belong there stays on the device.
    """

    name = "layrub_inter"

    def __init__(self, fixed_region: bool = False) -> None:
        self._fixed_region = fixed_region

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        return _migrate(self.name, graph, budget_bytes, intra_layer=False, fixed_region=self._fixed_region)


class LayrubHybrid(Strategy):
    """Inter-layer migration with intra-layer reuse.

    Args:
        fixed_region: blocks share a region of fixed pieces, as in the paper's published sources, instead of memory on
            demand; what does not belong there stays on the device.
    """

    name = "layrub_hybrid"

    def __init__(self, fixed_region: bool = False) -> None:
        self._fixed_region = fixed_region

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = cost.annotate(mask_relu(graph))
        return _migrate(self.name, graph, budget_bytes, intra_layer=True, fixed_region=self._fixed_region)


def _migrate(
    name: str, graph: TaskGraph, budget_bytes: int | None, *, intra_layer: bool, fixed_region: bool
) -> Schedule:
    region = None
    stays = kept_on_device(graph) if fixed_region else set()
    if fixed_region:  # its pieces are planned from what memory on demand would hold at the same time
        on_demand = ScheduleBuilder(name, graph, budget_bytes=None)
        _forward(on_demand, stays)
        _backward(on_demand, intra_layer=intra_layer)
        region = plan_constant_region(on_demand.finish(), intra_layer=intra_layer)
    builder = ScheduleBuilder(name, graph, budget_bytes=budget_bytes, region=region)
    _forward(builder, stays)
    _backward(builder, intra_layer=intra_layer)
    return builder.finish()


def _forward(builder: ScheduleBuilder, stays: set[int]) -> None:
    """Algorithm 1, forward: what a layer is the last to read leaves for the host while the layer runs."""
    tracer = Tracer(builder.graph)
    saved = _saved_for_backward(builder.graph) - stays
    for layer in builder.graph.forward_layers:
        leaving = [block for block in tracer.will_finish(layer) if block in saved]
        read_only = [block for block in leaving if block not in layer.writes]
        for block in read_only:
            builder.offload(block)
        compute_on_demand(builder, layer.tasks)
        for block in leaving:
            if block not in read_only:
                builder.offload(block)
        if leaving:
            builder.synchronize()
        for block in leaving:
            builder.free(block)
        tracer.finish(layer)


def _backward(builder: ScheduleBuilder, *, intra_layer: bool) -> None:
    """Algorithm 1, backward: the next layer's data comes back while this layer runs."""
    layers = builder.graph.backward_layers
    for layer, following in zip_longest(layers, layers[1:]):
        for block in sorted(following.reads) if following else ():
            if builder.is_offloaded(block):
                builder.prefetch(block)
        for task in layer.tasks:
            builder.compute(task)
            if intra_layer:  # the weight gradient read the activation last: the data gradient takes its space
                builder.free_dead()
        builder.synchronize()
        builder.free_dead()


def _saved_for_backward(graph: TaskGraph) -> set[int]:
    """Return the blocks of the forward pass that must come back; the last layers' stay for the turn."""
    created = {block for layer in graph.forward_layers for block in layer.creates}
    needed = {block for layer in graph.backward_layers for block in layer.reads}
    at_the_turn = graph.forward_layers[-1].touches | graph.backward_layers[0].reads
    return (created & needed) - at_the_turn
