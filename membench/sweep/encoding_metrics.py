"""What a record says of the maps that wait for the backward pass, dense or encoded."""

import torch

from membench.core.schedule import Compute, Decode, Encode, Schedule
from membench.core.task_graph import Phase, Role, TaskGraph
from membench.core.timeline import Timeline
from membench.planning.encoding import float32_activations
from membench.planning.liveness import residencies


def encoding_metrics(schedule: Schedule) -> dict[str, float]:
    """Return sizes and precision of what is stored between the two passes.

    ``rounding`` says of every schedule what precision its gradients lose; 0: none. ``planned_density`` is the fraction of
    non-zeros that room was made for, averaged over the encoded maps by size. ``layer_output_bytes`` adds up what every
    layer of the forward pass puts out, as if nothing were written in place;
    ``weight_state_bytes`` are weights, gradients and momentum.
    """
    graph = schedule.graph
    encodes = [item for item in schedule.instructions if isinstance(item, Encode)]
    dense_bytes = graph.size_bytes(item.block for item in encodes)
    room_bytes = torch.float32.itemsize * sum(_planned_nonzeros(graph, item) for item in encodes)
    layer_output_bytes = _layer_output_bytes(graph)
    weight_bytes = sum(block.size_bytes for block in graph.blocks if block.role is Role.WEIGHT)
    return {
        "rounding": schedule.rounding,
        "stored_map_bytes": _stored_map_bytes(schedule),
        "layer_output_bytes": layer_output_bytes,
        "weight_state_bytes": 3 * weight_bytes,
        "layer_output_and_weight_state_bytes": layer_output_bytes + 3 * weight_bytes,
        "dense_bytes_of_encoded_maps": dense_bytes,
        "encoded_bytes": graph.size_bytes(item.encoded for item in encodes),
        "planned_density": room_bytes / dense_bytes if encodes else 1.0,
    }


def codec_time_metrics(schedule: Schedule, timeline: Timeline) -> dict[str, float]:
    """Return how long maps were encoded and decoded."""
    codec = {i for i, item in enumerate(schedule.instructions) if isinstance(item, Encode | Decode)}
    return {
        "codec_time_s": sum(
            span.end_s - span.start_s for span in timeline.spans if span.instruction in codec
        ),
        "exposed_codec_time_s": timeline.exposed_s(codec),
    }


def _planned_nonzeros(graph: TaskGraph, encode: Encode) -> int:
    dense_bytes, encoded_bytes = (graph.blocks[b].size_bytes for b in (encode.block, encode.encoded))
    return encode.codec.capacity(dense_bytes // torch.float32.itemsize, encoded_bytes)


def _stored_map_bytes(schedule: Schedule) -> int:
    """Return the floating-point maps, dense or encoded, that are held where the backward pass begins, or at the end."""
    graph = schedule.graph
    kept = float32_activations(graph) | {b.index for b in graph.blocks if b.role is Role.ENCODED}
    backward = (
        position
        for position, item in enumerate(schedule.instructions)
        if isinstance(item, Compute) and graph.tasks[item.task].phase is Phase.BACKWARD
    )
    turn = next(backward, None)  # none in inference
    held: set[int] = set()
    for block, begins in residencies(schedule, until=turn):
        (held.add if begins else held.discard)(block)
    return graph.size_bytes(held & kept)


def _layer_output_bytes(graph: TaskGraph) -> int:
    maps = float32_activations(graph)
    return sum(graph.size_bytes(maps.intersection(layer.tasks[-1].writes)) for layer in graph.forward_layers)
