"""SuperNeurons: liveness analysis, offloading of results that are costly to compute, recomputation of cheap ones.

Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training Deep Neural Networks", PPoPP 2018. A block is
freed after its last use (liveness analysis). A result that the backward pass needs is treated by the layer that makes
it:

- Unified tensor pool: the results of checkpoints are offloaded while the layers after them run, and prefetched while
  the backward pass is at the checkpoint before.
- Cost-aware recomputation: results between two checkpoints (batch norm, ReLU, pooling, LRN, dropout) are dropped and
  recomputed from the checkpoint: once for the whole segment (speed-centric) where they and a layer's gradients take no
  more than l_peak, which is needed anyway; otherwise for each layer anew (memory-centric).

Readings. Checkpoints are convolutions, linear layers and attention; and joins, layers that read the results of several:
recomputing a chain of residual units would lead back to its beginning. Linear layers' results are small and stay.
Blocks that the first stage of the backward pass reads are not offloaded. l_peak, the memory of the paper's layer that
needs most, is that of the task that needs most.

Left out: the tensor cache (the paper offloads nothing while memory lasts; here every checkpoint is offloaded, as if the
device were always full) and the choice of convolution algorithms by free memory. Not vDNN, which offloads the inputs of
layers, and recomputes nothing. A framework that writes batch norm and ReLU onto a convolution's result leaves nothing
to recompute.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import EXTERNAL_ROLES, RESULT_ROLES, Kind, LayerTasks, Role, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.recompute import Repeatable, Segment, recompute
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand

COSTLY = (Kind.CONVOLUTION, Kind.LINEAR, Kind.ATTENTION)


class SuperNeurons(Strategy):
    """SuperNeurons: offload checkpoints and recompute the cheap layers between them (Wang et al. 2018, Section 3)."""

    name = "superneurons"
    plans_for_budgets = False

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        checkpoints = _Checkpoints(graph)
        graph = recompute(Repeatable(graph, cost), list(checkpoints.segments()))
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        stages = checkpoints.stages(graph)
        offloaded = checkpoints.results & _reads(graph.backward_layers) - _reads(stages[0])
        _forward(builder, checkpoints, offloaded)
        _backward(builder, stages)
        return builder.finish()


class _Checkpoints:
    """The checkpoints of a graph, and the segments between them.

    Attributes:
        layers: checkpoints of the forward pass, linear layers included.
        results: blocks that they write, without those of linear layers and those that the caller has or gets.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        found = [layer for layer in graph.forward_layers if layer.has_kind(*COSTLY) or _is_join(graph, layer)]
        self.layers = frozenset(layer.layer for layer in found)
        self._written = frozenset(block for layer in found for block in layer.writes)
        kept = frozenset(b.index for b in graph.blocks if b.role in RESULT_ROLES or b.role in EXTERNAL_ROLES)
        self.results = frozenset(b for t in found if not t.has_kind(Kind.LINEAR) for b in t.writes) - kept

    def segments(self) -> Iterator[Segment]:
        """Yield the segments between two checkpoints, with how they are recomputed."""
        graph = self._graph
        peak_of_a_task_bytes = graph.lower_bound_bytes - graph.external_bytes
        gradients = {block.index for block in graph.blocks if block.role is Role.GRADIENT}
        gradient_bytes = {layer.layer: graph.size_bytes(layer.touches & gradients) for layer in graph.backward_layers}
        for is_checkpoint, group in groupby(graph.forward_layers, lambda layer: layer.layer in self.layers):
            if is_checkpoint:
                continue
            layers = list(group)
            dropped = frozenset(b for layer in layers for b in layer.creates) - self._written
            recomputed_bytes = graph.size_bytes(dropped)
            backward_bytes = max(gradient_bytes.get(layer.layer, 0) for layer in layers)
            yield Segment(dropped, per_layer=recomputed_bytes + backward_bytes > peak_of_a_task_bytes)

    def stages(self, graph: TaskGraph) -> list[list[LayerTasks]]:
        """Return the layers of the backward pass in stages that end with a checkpoint."""
        stages: list[list[LayerTasks]] = [[]]
        for layer in graph.backward_layers:
            stages[-1].append(layer)
            if layer.layer in self.layers:
                stages.append([])
        return stages


def _is_join(graph: TaskGraph, layer: LayerTasks) -> bool:
    others = layer.reads - layer.creates
    return sum(graph.blocks[block].role not in EXTERNAL_ROLES for block in others) > 1


def _reads(layers: Iterable[LayerTasks]) -> frozenset[int]:
    return frozenset(block for layer in layers for block in layer.reads)


def _forward(builder: ScheduleBuilder, checkpoints: _Checkpoints, offloaded: frozenset[int]) -> None:
    """Offload a result as soon as it is written, and free it at the first checkpoint after its last reader."""
    layers = builder.graph.forward_layers
    last_write = {block: position for position, layer in enumerate(layers) for block in layer.writes}
    last_use = {block: position for position, layer in enumerate(layers) for block in layer.touches}
    offloading: list[int] = []
    for position, layer in enumerate(layers):
        compute_on_demand(builder, layer.tasks)
        if layer.layer in checkpoints.layers:
            for block in [block for block in offloading if last_use[block] <= position]:
                builder.free(block)
                offloading.remove(block)
        for block in sorted(layer.writes & offloaded):
            if last_write[block] == position:
                builder.offload(block)
                offloading.append(block)
    for block in offloading:
        builder.free(block)


def _backward(builder: ScheduleBuilder, stages: list[list[LayerTasks]]) -> None:
    """While a checkpoint's backward runs, prefetch what the next stage reads, its recomputation included."""
    for stage, following in zip(stages, [*stages[1:], []], strict=True):
        for layer in stage:
            if layer is stage[-1]:
                builder.prefetch_offloaded(_reads(following))
            compute_on_demand(builder, layer.tasks)
