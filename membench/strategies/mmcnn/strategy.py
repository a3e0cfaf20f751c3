"""mmCNN: inference of large networks in very little device memory.

mmCNN's paper, Section 3: weights and feature maps are kept in host memory and prefetched. Layers form *convolutional
segments*: the layers after one convolution or linear layer, up to and including the next (Figure 5). For each segment
Algorithm 1 decides in how many parts the weights at its end are prefetched while its first layer runs (conv_number; 0:
when they are needed), and in how many parts each layer computes (self_number). Where the network fits as a whole, it
runs as usual (the paper's normal mode).

The paper counts only a layer's feature maps and weights. A real operator also has a workspace, gathers rows that lie in
several bands, and pooling returns indices; so after Algorithm 1 everything that does not fit is split further
(`refinement`), feature maps by rows, weights by output channels. The other difference from the paper: weights are
prefetched as early as memory allows, and not only at a segment's first layer. Not vDNN's inference mode
(`vdnn_inference`), which splits nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import EXTERNAL_ROLES, Kind, LayerTasks, Mode, Role, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.rewrite import keep_on_host
from membench.strategies.base import Strategy
from membench.strategies.mmcnn.partition import Parts
from membench.strategies.mmcnn.refinement import refine, unsplittable_bytes
from membench.strategies.mmcnn.residency import Residency
from membench.strategies.on_demand import compute_on_demand

_ENDS_SEGMENT = (Kind.CONVOLUTION, Kind.LINEAR)


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """A layer as the control module counts it: input and output feature maps, and weights if it ends a segment."""

    feature_map_bytes: int
    weight_bytes: int = 0
    ends_segment: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Algorithm 1's decision for a layer.

    Attributes:
        conv_number: parts in which the weights at the end of the segment are prefetched from here on; 0: not here.
        self_number: parts in which the layer computes.
        row_parts: parts in which its feature maps lie, one of the reasons for `self_number`; its weights are the other.
        memory_bytes: held by the layer, as the paper counts.
    """

    conv_number: int
    self_number: int
    row_parts: int
    memory_bytes: float


class Mmcnn(Strategy):
    """mmCNN: inference of large networks in parts, from host memory, under a memory limit (Section 3, Algorithm 1).

    Args:
        pn_max: the most parts in which weights are prefetched. The paper gives no value, and its Table 4 leaves 3 to 6
            open. Of these it is the largest: weights are prefetched unless the table shows that they are not.
    """

    name = "mmcnn"
    modes = frozenset({Mode.INFERENCE})
    moves_weights = True

    def __init__(self, pn_max: int = 6) -> None:
        self.pn_max = pn_max

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        normal = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        compute_on_demand(normal, graph.tasks)
        if budget_bytes is None or normal.peak_bytes <= budget_bytes:
            return normal.finish()
        on_host = keep_on_host(graph, EXTERNAL_ROLES)
        layers = layers_of(on_host)
        decisions = algorithm_1(layers, max(budget_bytes, unsplittable_bytes(on_host)[0]), self.pn_max)
        split = refine(on_host, cost, _parts(on_host, decisions), budget_bytes)
        builder = ScheduleBuilder(self.name, split, budget_bytes=budget_bytes)
        Residency(builder, budget_bytes, _ends_of_segments(split)).run()
        return replace(builder.finish(), decisions=_named(layers, decisions))


def algorithm_1(layers: Sequence[LayerSizes], limit_bytes: int, pn_max: int) -> list[Decision]:
    """Decide conv_number and self_number of each layer, as the paper's tables show them.

    The rule that Tables 3 to 6 follow, where the printed algorithm leaves rounding, the bound and a branch open.
    Feature maps that exceed the limit are split into as many parts as it takes, even into more than they have rows.
    """
    decisions: list[Decision] = []
    for segment in _segments(layers):
        row_parts = [max(1, ceil(layer.feature_map_bytes / limit_bytes)) for layer in segment]
        held_bytes = [layer.feature_map_bytes / parts for layer, parts in zip(segment, row_parts, strict=True)]
        conv_numbers, self_numbers = [0] * len(segment), list(row_parts)
        weight_bytes = segment[-1].weight_bytes
        mem_max, at_end = max(held_bytes), held_bytes[-1]
        conv_part_num = _parts_in(weight_bytes, limit_bytes - mem_max)
        if conv_part_num <= pn_max:  # prefetch the weights while the segment's first layer runs
            conv_numbers[0] = conv_part_num
            held_bytes[0] += weight_bytes / conv_part_num
            self_numbers[-1] = max(self_numbers[-1], conv_part_num)
        else:  # prefetch them when the last layer needs them
            self_numbers[-1] = max(self_numbers[-1], _parts_in(weight_bytes, limit_bytes - at_end))
            held_bytes[-1] += weight_bytes / self_numbers[-1]
        found = zip(conv_numbers, self_numbers, row_parts, held_bytes, strict=True)
        decisions += [Decision(*numbers) for numbers in found]
    return decisions


def _segments(layers: Sequence[LayerSizes]) -> list[Sequence[LayerSizes]]:
    """Return the convolutional segments (Figure 5); layers after the last convolution have no weights to prefetch."""
    ends = [position + 1 for position, layer in enumerate(layers) if layer.ends_segment]
    bounds = [0, *ends, *([len(layers)] if ends[-1:] != [len(layers)] else [])]
    return [layers[start:end] for start, end in pairwise(bounds)]


def _parts_in(weight_bytes: int, free_bytes: float) -> int:
    """Return in how many parts weights fit into free memory; where there is none, one part per byte."""
    return max(1, ceil(weight_bytes / free_bytes)) if free_bytes > 0 else max(1, weight_bytes)


def layers_of(graph: TaskGraph) -> list[LayerSizes]:
    """Return the data layer and the network's layers, as the paper numbers them from 1 on."""
    data_bytes = sum(block.size_bytes for block in graph.blocks if block.role is Role.INPUT)
    return [LayerSizes(data_bytes), *(_sizes(graph, layer) for layer in graph.forward_layers)]


def _sizes(graph: TaskGraph, layer: LayerTasks) -> LayerSizes:
    """Count the blocks that the layer shares with others, without those that only its own tasks use."""
    last_task = layer.tasks[-1].index
    inner = {b for b in layer.creates if graph.last_use[b] <= last_task and graph.blocks[b].role is not Role.OUTPUT}
    touched = [graph.blocks[b] for b in layer.touches - inner]
    return LayerSizes(
        feature_map_bytes=sum(b.size_bytes for b in touched if b.role in _FEATURE_MAPS),
        weight_bytes=sum(b.size_bytes for b in touched if b.role is Role.WEIGHT),
        ends_segment=layer.has_kind(*_ENDS_SEGMENT),
    )


_FEATURE_MAPS = frozenset({Role.INPUT, Role.ACTIVATION, Role.OUTPUT})


def _parts(graph: TaskGraph, decisions: Sequence[Decision]) -> dict[int, Parts]:
    """Return the parts of each task: feature maps by rows, and weights by channels where they need more."""
    parts = {}
    for layer, decision in zip(graph.forward_layers, decisions[1:], strict=True):
        channels = 1 if decision.self_number == decision.row_parts else decision.self_number
        for task in layer.tasks:
            parts[task.index] = Parts(decision.row_parts, channels)
    return parts


def _ends_of_segments(graph: TaskGraph) -> list[int]:
    """Return for each task the index after the next part of a convolution or linear layer behind it."""
    ends, end = [], len(graph.tasks)
    for task in reversed(graph.tasks):
        ends.append(end)
        if task.kind in _ENDS_SEGMENT:
            end = task.index + 1
    return ends[::-1]


def _named(layers: Sequence[LayerSizes], decisions: Sequence[Decision]) -> tuple[tuple[str, float], ...]:
    """Return Algorithm 1's decisions by name and layer, for records."""
    return tuple(
        (f"{name}:layer {number}", value)
        for number, (layer, decision) in enumerate(zip(layers, decisions, strict=True), start=1)
        for name, value in (
            ("counted_weight_bytes", layer.weight_bytes),
            ("conv_number", decision.conv_number),
            ("self_number", decision.self_number),
            ("counted_memory_bytes", decision.memory_bytes),
        )
    )
