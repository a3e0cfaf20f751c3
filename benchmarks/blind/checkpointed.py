"""Recomputation between checkpoints that the kind of a layer decides, nothing offloaded.

No strategy of membench does that alone.

- OpenAI's speed mode (cybertronai/gradient-checkpointing): the outputs of convolutions and matrix multiplies are kept.
- SuperNeurons' speed-centric and memory-centric recomputation, of which the recomputed layers are counted here. Sums
  are checkpoints as well, as in `membench.strategies.superneurons`.
"""

from collections.abc import Iterator
from itertools import groupby

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import EXTERNAL_ROLES, Kind, LayerTasks, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.recompute import Repeatable, Segment, recompute
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand

COSTLY = (Kind.CONVOLUTION, Kind.LINEAR, Kind.ATTENTION)


class Checkpointed(Strategy):
    """Keep the results of costly layers, recompute those between them.

    Args:
        per_layer: recompute for each layer anew (memory-centric); otherwise a segment once (speed-centric).
        keeps_sums: layers that read several results are checkpoints, too.
    """

    name = "checkpointed"

    def __init__(self, per_layer: bool = False, keeps_sums: bool = False) -> None:
        self._per_layer = per_layer
        self._keeps_sums = keeps_sums

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = recompute(Repeatable(graph, cost), list(self._segments(graph)))
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        compute_on_demand(builder, graph.tasks)
        return builder.finish()

    def _segments(self, graph: TaskGraph) -> Iterator[Segment]:
        layers = graph.forward_layers
        kept = {layer.layer for layer in layers if self._is_checkpoint(graph, layer)}
        written = {block for layer in layers if layer.layer in kept for block in layer.writes}
        for is_checkpoint, group in groupby(layers, lambda layer: layer.layer in kept):
            if not is_checkpoint:
                dropped = frozenset(block for layer in group for block in layer.creates) - written
                yield Segment(dropped, per_layer=self._per_layer)

    def _is_checkpoint(self, graph: TaskGraph, layer: LayerTasks) -> bool:
        others = [b for b in layer.reads - layer.creates if graph.blocks[b].role not in EXTERNAL_ROLES]
        return layer.has_kind(*COSTLY) or (self._keeps_sums and len(others) > 1)
