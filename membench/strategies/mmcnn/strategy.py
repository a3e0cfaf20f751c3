"""mmCNN: inference of large networks in very little device memory.

mmCNN's paper, Section 3: weights and maps live in host memory and visit the device. Layers are taken in *convolutional
segments*: what follows one convolution or linear layer, up to and including the next (Figure 5). For each segment Algorithm 1
decides in how many parts the weights at its end come, while its first layer runs (conv_number; 0: they come when they are
needed), and in how many parts each layer computes (self_number). Where the network fits as a whole, it runs as usual (the
paper's normal mode).

The paper counts a layer's maps and weights, nothing else. A real operator also has a workspace, gathers rows that lie in
several bands, and pooling returns indices; so after Algorithm 1 whatever does not fit is split further
(`planning/refinement.py`), maps by rows, weights by output channels. That, and bringing weights as early as room allows
instead of at a segment's first layer only, is what differs from the paper. Not vDNN's inference mode (`vdnn_inference`),
which splits nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from membench.core.cost_model import CostModel
from membench.core.schedule import Schedule
from membench.core.task_graph import EXTERNAL_ROLES, Kind, LayerTasks, Mode, Role, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrite import keep_on_host
from membench.strategies.base import Strategy
from membench.strategies.mmcnn.partition import Parts
from membench.strategies.mmcnn.refinement import refine, unsplittable_bytes
from membench.strategies.mmcnn.residency import Residency
from membench.strategies.on_demand import compute_on_demand

_ENDS_SEGMENT = (Kind.CONVOLUTION, Kind.LINEAR)


@dataclass(frozen=True, slots=True)
class Layer:
    """What the control module knows of a layer: its input and output maps, and its weights if it ends a segment."""

    map_bytes: int
    weight_bytes: int = 0
    ends_segment: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Algorithm 1's answer for a layer.

    Attributes:
        conv_number: parts in which the weights at the end of the segment come from here on; 0: none come.
        self_number: parts in which the layer computes.
        map_parts: parts in which its maps lie, one of the reasons for `self_number`; its weights are the other.
        memory_bytes: what the layer holds, as the paper counts.
    """

    conv_number: int
    self_number: int
    map_parts: int
    memory_bytes: float


class Mmcnn(Strategy):
    """Args:
    pn_max: the most parts in which weights are brought ahead; the paper gives no value, and 5 fits its tables best.
    """

    name = "mmcnn"
    modes = frozenset({Mode.INFERENCE})

    def __init__(self, pn_max: int = 5) -> None:
        self._pn_max = pn_max

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        normal = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        compute_on_demand(normal, graph.tasks)
        if budget_bytes is None or normal.peak_bytes <= budget_bytes:
            return normal.finish()
        visiting = keep_on_host(graph, EXTERNAL_ROLES)
        layers = layers_of(visiting)
        decisions = algorithm_1(layers, max(budget_bytes, unsplittable_bytes(visiting)[0]), self._pn_max)
        split = refine(visiting, cost, _parts(visiting, decisions), budget_bytes)
        builder = ScheduleBuilder(self.name, split, budget_bytes=budget_bytes)
        Residency(builder, budget_bytes, _ends_of_segments(split)).run()
        return replace(builder.finish(), decisions=_named(layers, decisions))


def algorithm_1(layers: Sequence[Layer], limit_bytes: int, pn_max: int) -> list[Decision]:
    """Decide conv_number and self_number of each layer, as the paper's tables show them.

    The rule that Tables 3 to 6 follow, where the printed algorithm leaves rounding, the bound and a branch open. A layer
    whose maps exceed the limit even in no parts that there are gets as many parts as it takes.
    """
    decisions: list[Decision] = []
    for segment in _segments(layers):
        map_parts = [max(1, ceil(layer.map_bytes / limit_bytes)) for layer in segment]
        held_bytes = [layer.map_bytes / parts for layer, parts in zip(segment, map_parts, strict=True)]
        conv_numbers, self_numbers = [0] * len(segment), list(map_parts)
        weight_bytes = segment[-1].weight_bytes
        mem_max, at_end = max(held_bytes), held_bytes[-1]
        conv_part_num = _parts_in(weight_bytes, limit_bytes - mem_max)
        if conv_part_num <= pn_max:  # the weights come while the segment's first layer runs
            conv_numbers[0] = conv_part_num
            held_bytes[0] += weight_bytes / conv_part_num
            self_numbers[-1] = max(self_numbers[-1], conv_part_num)
        else:  # the last layer brings its own
            self_numbers[-1] = max(self_numbers[-1], _parts_in(weight_bytes, limit_bytes - at_end))
            held_bytes[-1] += weight_bytes / self_numbers[-1]
        found = zip(conv_numbers, self_numbers, map_parts, held_bytes, strict=True)
        decisions += [Decision(*numbers) for numbers in found]
    return decisions


def _segments(layers: Sequence[Layer]) -> list[Sequence[Layer]]:
    """Return the convolutional segments (Figure 5); layers behind the last convolution bring no weights."""
    ends = [position + 1 for position, layer in enumerate(layers) if layer.ends_segment]
    bounds = [0, *ends, *([len(layers)] if ends[-1:] != [len(layers)] else [])]
    return [layers[start:end] for start, end in pairwise(bounds)]


def _parts_in(weight_bytes: int, free_bytes: float) -> int:
    """Return in how many parts weights fit into some memory; where there is none, in as many as they have bytes."""
    return max(1, ceil(weight_bytes / free_bytes)) if free_bytes > 0 else max(1, weight_bytes)


def layers_of(graph: TaskGraph) -> list[Layer]:
    """Return the data layer and the network's layers, as the paper numbers them from 1 on."""
    created = [0] * len(graph.blocks)
    for position, run in enumerate(graph.forward_layers):
        for block in run.creates:
            created[block] = position
    data_bytes = sum(block.size_bytes for block in graph.blocks if block.role is Role.INPUT)
    return [Layer(data_bytes), *(_layer(graph, run) for run in graph.forward_layers)]


def _layer(graph: TaskGraph, run: LayerTasks) -> Layer:
    """Count what the layer reads from others and hands on: not what lives and dies inside of it."""
    last_task = run.tasks[-1].index
    inner = {
        b for b in run.creates if graph.last_use[b] <= last_task and graph.blocks[b].role is not Role.OUTPUT
    }
    touched = [graph.blocks[b] for b in run.touches - inner]
    return Layer(
        map_bytes=sum(b.size_bytes for b in touched if b.role in _MAPS),
        weight_bytes=sum(b.size_bytes for b in touched if b.role is Role.WEIGHT),
        ends_segment=run.has_kind(*_ENDS_SEGMENT),
    )


_MAPS = frozenset({Role.INPUT, Role.ACTIVATION, Role.OUTPUT})


def _parts(graph: TaskGraph, decisions: Sequence[Decision]) -> dict[int, Parts]:
    """Return the parts of each task: the layer's maps in rows, and its weights in channels where they need more."""
    parts = {}
    for run, decision in zip(graph.forward_layers, decisions[1:], strict=True):
        channels = 1 if decision.self_number == decision.map_parts else decision.self_number
        for task in run.tasks:
            parts[task.index] = Parts(decision.map_parts, channels)
    return parts


def _ends_of_segments(graph: TaskGraph) -> list[int]:
    """Return for each task the index behind the next part of a convolution or linear layer after it."""
    ends, end = [], len(graph.tasks)
    for task in reversed(graph.tasks):
        ends.append(end)
        if task.kind in _ENDS_SEGMENT:
            end = task.index + 1
    return ends[::-1]


def _named(layers: Sequence[Layer], decisions: Sequence[Decision]) -> tuple[tuple[str, float], ...]:
    """Return Algorithm 1's answers by name and layer, for records."""
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
