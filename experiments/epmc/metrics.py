"""EPMC's own numbers: stored activations, dense or encoded, and encodings of random maps (Sections 5.3 to 5.5).

Sizes of encoded random maps come from really encoding them, times from the cost model.
"""

import statistics
from functools import cache
from math import ceil

import torch
from torch import Tensor

from experiments.epmc.sizes import COO, DIA, ELL
from membench.codecs.rows import csr, vp_encoding
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.codec import ActivationCodec, Codec
from membench.core.graph.schedule import Compute, Encode, Schedule
from membench.core.graph.task_graph import Kind, Phase, Role, Task, TaskGraph
from membench.core.graph.timeline import Timeline
from membench.core.hardware.cost_model import CostModel
from membench.core.hardware.device import DeviceProfile
from membench.cost.roofline import RooflineCost
from membench.lab.papers.reading.experiment import Paper, PaperCell
from membench.planning.encoding import float32_activations
from membench.planning.memory.liveness import residencies
from membench.steps.plan import Runs
from membench.sweep.cells.metrics import Metrics

SPARSITIES_PERCENT = (10, 20, 30, 40, 50, 60, 70, 80, 90)
TIMED_SPARSITY_PERCENT = 50  # Section 5.3
ENCODED_ROWS = 2000  # of the random map whose size is measured; its ratios do not depend on the volume
COUNTED_KINDS = (Kind.CONVOLUTION, Kind.POOLING, Kind.LINEAR)  # of layers whose output Table 2 counts


def step_metrics(plan: Runs, timelines: tuple[Timeline, ...], device: DeviceProfile | None) -> Metrics:
    """Return sizes of what is stored between the two passes, of layers' outputs, and of weights with their state.

    ``layer_output_bytes`` is the count of EPMC's Table 2, see `_layer_output_bytes`; ``weight_state_bytes`` are
    weights, gradients and momentum.
    """
    schedule = plan[0].schedule
    graph = schedule.graph
    encodes = [item for item in schedule.instructions if isinstance(item, Encode)]
    layer_output_bytes = _layer_output_bytes(graph)
    weight_bytes = sum(block.size_bytes for block in graph.blocks if block.role is Role.WEIGHT)
    return {
        "stored_map_bytes": _stored_map_bytes(schedule),
        "stored_float_map_bytes": _stored_map_bytes(schedule, with_indices=False),
        "layer_output_bytes": layer_output_bytes,
        "weight_state_bytes": 3 * weight_bytes,
        "layer_output_and_weight_state_bytes": layer_output_bytes + 3 * weight_bytes,
        **_all_map_metrics(graph, weight_bytes),
        "dense_bytes_of_encoded_maps": graph.size_bytes(item.block for item in encodes),
        "encoded_bytes": graph.size_bytes(item.encoded for item in encodes),
    }


def _all_map_metrics(graph: TaskGraph, weight_bytes: int) -> Metrics:
    """Return another count for Table 2: twice the images and every map, those of ReLUs and dropout included."""
    images_bytes = sum(block.size_bytes for block in graph.blocks if block.role is Role.INPUT)
    map_bytes = 2 * (images_bytes + graph.size_bytes(float32_activations(graph)))
    return {"all_map_bytes": map_bytes, "all_map_and_weight_state_bytes": map_bytes + 3 * weight_bytes}


def _stored_map_bytes(schedule: Schedule, *, with_indices: bool = True) -> int:
    """Return the activations, dense or encoded, that are held where the backward pass begins, or at the end.

    Args:
        with_indices: count the int64 indices that PyTorch's maximum pooling stores, too; no encoding makes them
            smaller.
    """
    graph = schedule.graph
    kept = {b.index for b in graph.blocks if b.role in (Role.ACTIVATION, Role.ENCODED)}
    if not with_indices:
        indices = {b.index for b in graph.blocks if b.role is Role.ACTIVATION} - float32_activations(graph)
        kept -= indices
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
    """Return twice (data and gradient) the images and outputs of convolutions, poolings and linear layers (Table 2).

    The average pooling that torchvision adds to VGG-16, which copies 7 x 7 pixels, is not counted: the published
    network has none.
    """
    maps = float32_activations(graph)
    counted_bytes = sum(block.size_bytes for block in graph.blocks if block.role is Role.INPUT)
    for layer in graph.forward_layers:
        output_bytes = graph.size_bytes(maps & set(layer.tasks[-1].writes))
        is_copy = layer.has_kind(Kind.POOLING) and output_bytes == graph.size_bytes(maps & layer.reads)
        if layer.has_kind(*COUNTED_KINDS) and not is_copy:
            counted_bytes += output_bytes
    return 2 * counted_bytes


def encoding_metrics(paper: Paper, cell: PaperCell) -> Metrics:
    """Return `encoded_map_metrics` of a system that sets ``codec`` and ``streams``, and a model with ``columns``.

    The batch size is the map's volume, in units of the model's ``elements_per_volume``.
    """
    system, model = paper.systems[cell.system], paper.models[cell.model]
    elements = int(int(cell.batch_size or model["batch_sizes"]["normal"]) * model["elements_per_volume"])
    names = system["framework"], paper.devices[cell.device]
    return dict(_of_a_system(**system["set"], elements=elements, columns=model["columns"], names=names))


@cache
def _of_a_system(codec: str, streams: int, elements: int, columns: int, names: tuple[str, str]) -> Metrics:
    framework, device = configuration.load("framework", names[0]), configuration.load("device", names[1])
    return encoded_map_metrics(codec, streams, elements, columns, RooflineCost(device, framework.efficiency))


def encoded_map_metrics(codec: str, streams: int, elements: int, columns: int, cost: CostModel) -> Metrics:
    """Return sizes and times of a random map in an encoding.

    ``footprint_ratio:<percent of zeros>`` is the dense size over the encoded one, of a map of `ENCODED_ROWS` rows;
    ``mean_ratio_to_csr`` is the mean over the percentages of CSR's stored size over this encoding's, where a map is
    stored dense if the encoding would be larger (``mean_unbounded_ratio_to_csr``: never). Times are of a map of the
    given volume, half of whose elements are zero: alone, in series with a ReLU, and in parallel with one. There the
    device is divided so that the longer of the two is shortest (Equation 1), and launches overlap.
    ``speedup_by_streams`` is over the same parts one after another, whose launches the streams hide;
    ``speedup_over_one_call`` over one conversion of the whole map.

    Args:
        codec: one of ``vp``, ``csr``, ``coo``, ``ell``, ``dia``.
        streams: that the encoding is spread over; decides the time.
        elements: number of elements of the map that is timed.
        columns: number of columns of the map whose size is measured.

    Raises:
        MembenchError: there is no such codec.
    """
    encoding = _codec(codec, streams)
    order = torch.rand(ENCODED_ROWS * columns, generator=torch.Generator().manual_seed(0))
    ratios, csr_ratios = _footprint_ratios(encoding, order), _footprint_ratios(csr(), order)
    to_csr = (max(1.0, own) / max(1.0, other) for own, other in zip(ratios, csr_ratios, strict=True))
    return {
        **{f"footprint_ratio:{p}": ratio for p, ratio in zip(SPARSITIES_PERCENT, ratios, strict=True)},
        "mean_footprint_ratio": statistics.fmean(ratios),
        "mean_ratio_to_csr": statistics.fmean(to_csr),
        "mean_unbounded_ratio_to_csr": statistics.fmean(
            own / other for own, other in zip(ratios, csr_ratios, strict=True)
        ),
        "break_even_sparsity_percent": _break_even_percent(encoding, order),
        **_times(encoding, _codec(codec, streams=1), elements, cost),
    }


def _codec(name: str, streams: int) -> Codec:
    codecs: dict[str, Codec] = {
        "vp": vp_encoding(streams=streams),
        "csr": csr(streams=streams),
        "coo": COO(),
        "ell": ELL(),
        "dia": DIA(),
    }
    if name not in codecs:
        raise MembenchError(f"there is no codec {name!r}; choose one of {', '.join(codecs)}")
    return codecs[name]


def _times(codec: Codec, one_stream: Codec, elements: int, cost: CostModel) -> Metrics:
    if not (isinstance(codec, ActivationCodec) and isinstance(one_stream, ActivationCodec)):
        return {}
    dense_bytes = torch.float32.itemsize * elements
    nonzeros = elements * (100 - TIMED_SPARSITY_PERCENT) // 100
    encoded_bytes = codec.size_bytes(elements, nonzeros)
    encode_s = cost.codec_time_s(codec, dense_bytes, encoded_bytes)
    one_call_s = cost.codec_time_s(one_stream, dense_bytes, encoded_bytes)
    parts = codec.streams
    in_series_s = parts * cost.codec_time_s(one_stream, ceil(dense_bytes / parts), ceil(encoded_bytes / parts))
    relu = Task(0, "relu", Kind.RELU, Phase.FORWARD, 0, (), (), (), moved_bytes=2 * dense_bytes)
    launch_s = cost.launch_time_s(relu)
    relu_s = launch_s + cost.task_time_s(relu)
    together_s = max(encode_s, relu_s, (encode_s - launch_s) * cost.codec_share(codec) + relu_s)
    return {
        "encode_time_s": encode_s,
        "speedup_by_streams": in_series_s / encode_s,
        "speedup_over_one_call": one_call_s / encode_s,
        "in_series_time_s": encode_s + relu_s,
        "in_parallel_time_s": together_s,
        "parallel_share": together_s / (encode_s + relu_s),
    }


def _footprint_ratios(codec: Codec, order: Tensor) -> list[float]:
    return [_footprint_ratio(codec, order, percent) for percent in SPARSITIES_PERCENT]


def _footprint_ratio(codec: Codec, order: Tensor, sparsity_percent: float) -> float:
    tensor = (order >= sparsity_percent / 100).float()
    return tensor.nbytes / max(1, codec.encode(tensor).size_bytes)


def _break_even_percent(codec: Codec, order: Tensor) -> float:
    """Return the percentage of zeros from which encoding saves memory, to half a percent; 100 where it never does."""
    low, high = 0.0, 100.0
    while high - low > 0.5:
        middle = (low + high) / 2
        saves = _footprint_ratio(codec, order, middle) >= 1
        low, high = (low, middle) if saves else (middle, high)
    return high
