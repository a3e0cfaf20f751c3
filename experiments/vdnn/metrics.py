"""vDNN's numbers of a step: memory by layer, managed memory, and feature extraction (Sections 2.1 and 5)."""

import statistics

from membench.core.graph.schedule import Compute, Offload, Prefetch, Schedule
from membench.core.graph.task_graph import Kind, LayerTasks, Phase, Role, Task, TaskGraph
from membench.core.graph.timeline import Span, Timeline
from membench.core.hardware.device import DeviceProfile
from membench.core.record import Outcome, Record
from membench.lab.papers.reading.experiment import Paper, PaperCell
from membench.planning.memory.liveness import average_bytes, live_bytes
from membench.steps.plan import Runs
from membench.strategies.vdnn import feature_layers
from membench.sweep.cells.metrics import Metrics, busy_time_s, compute_spans


def step_metrics(plan: Runs, timelines: tuple[Timeline, ...], device: DeviceProfile | None) -> Metrics:
    """Return numbers of memory and, of a simulated step, of time, of single layers and of the device."""
    first = plan[0].schedule
    metrics = _memory_metrics(first)
    if device is None:
        return metrics
    return {
        **metrics,
        **_average_metrics(first, timelines[0]),
        **_feature_metrics(plan, timelines, device),
        **_layer_metrics(first, timelines[0]),
        **_span_metrics(first, timelines[0]),
        "first_layer_reuse_s": _first_layer_reuse_s(list(compute_spans(first, timelines[0]))),
        "link_bytes_per_s": max(device.host_to_device_bytes_per_s, device.device_to_host_bytes_per_s),
        "memory_bytes_per_s": device.memory_bytes_per_s,
    }


def trained_batch_size(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    """Return the batch size of a cell that ran, 0 if it ran out of memory."""
    if record.outcome is Outcome.OUT_OF_MEMORY:
        return 0
    return record.configuration["batch_size"] if record.outcome is Outcome.OK else None


def _memory_metrics(schedule: Schedule) -> Metrics:
    """Return what the peak consists of; a part is absent where the method never holds all of it at once."""
    graph, peak_bytes = schedule.graph, schedule.peak_bytes
    neediest_bytes = max(_needed_bytes(graph, layer) for layer in _layers(graph))
    convolutions = [layer for layer in graph.forward_layers if layer.has_kind(Kind.CONVOLUTION)]
    parts = {
        "unused_by_any_layer_bytes": peak_bytes - neediest_bytes,
        "convolution_weight_bytes": sum(_weight_bytes(graph, layer) for layer in convolutions),
        "convolution_map_bytes": sum(_map_bytes(graph, layer) for layer in convolutions),
        "feature_extraction_bytes": peak_bytes - graph.size_bytes(_of_classifier(graph)),
    }
    return {name: size_bytes for name, size_bytes in parts.items() if size_bytes >= 0}


def _average_metrics(schedule: Schedule, timeline: Timeline) -> Metrics:
    """Return averages of all memory, and of what vDNN manages: all but what the classifier's weights need.

    A layer counts with the most that is held while it runs, in each direction, without regard to its time: vDNN
    allocates and releases by layer. The other average is over the time of the step. The peak is that of what vDNN
    manages as well.
    """
    unmanaged_bytes = _classifier_weight_bytes(schedule.graph)
    average_by_layer_bytes = statistics.fmean(_held_by_layer(schedule))
    return {
        "average_by_layer_bytes": average_by_layer_bytes,
        "managed_peak_bytes": schedule.peak_bytes - unmanaged_bytes,
        "managed_average_bytes": average_by_layer_bytes - unmanaged_bytes,
        "managed_average_over_time_bytes": average_bytes(schedule, timeline) - unmanaged_bytes,
    }


def _held_by_layer(schedule: Schedule) -> list[int]:
    """Return the most bytes that are held while each layer of the forward and of the backward pass runs."""
    held_bytes = {
        item.task: held
        for item, held in zip(schedule.instructions, live_bytes(schedule), strict=True)
        if isinstance(item, Compute)
    }
    return [max(held_bytes[task.index] for task in layer.tasks) for layer in _layers(schedule.graph)]


def _feature_metrics(plan: Runs, timelines: tuple[Timeline, ...], device: DeviceProfile) -> Metrics:
    """Return what vDNN times: the step without the classifier, also on a device with enough memory (Section 4.2)."""
    features = {layer.layer for layer in feature_layers(plan[0].schedule.graph)}
    step_time_s = 0.0
    for part, timeline in zip(plan, timelines, strict=True):
        step_time_s += part.count * timeline.step_time_s
    compute_time_s = busy_time_s(plan, timelines, lambda task: True)
    feature_time_s = busy_time_s(plan, timelines, lambda task: task.layer in features)
    samples = sum(part.samples for part in plan)
    images_per_s = samples / (step_time_s - (compute_time_s - feature_time_s))
    fits = max(part.schedule.peak_bytes for part in plan) <= device.memory_bytes
    return {
        "oracular_compute_time_s": compute_time_s,
        "oracular_feature_compute_time_s": feature_time_s,
        "oracular_feature_images_per_s": images_per_s,
        **({"feature_images_per_s": images_per_s} if fits else {}),
    }


def _layer_metrics(schedule: Schedule, timeline: Timeline) -> Metrics:
    """Return the memory of each layer with weights, and the bandwidth that each convolution uses (Figures 4 and 11)."""
    graph = schedule.graph
    metrics: Metrics = {}
    for layer in graph.forward_layers:
        if layer.has_kind(Kind.CONVOLUTION, Kind.LINEAR):
            name = graph.layers[layer.layer]
            metrics[f"layer_weight_bytes:{name}"] = _weight_bytes(graph, layer)
            metrics[f"layer_map_bytes:{name}"] = _map_bytes(graph, layer)
    for task, span in compute_spans(schedule, timeline):
        if task.kind is Kind.CONVOLUTION:
            direction = "backward" if task.phase is Phase.BACKWARD else "forward"
            name = f"{direction}_bytes_per_s:{graph.layers[task.layer]}"
            bytes_per_s = task.moved_bytes / (span.end_s - span.start_s)
            metrics[name] = max(bytes_per_s, metrics.get(name, 0.0))
    return metrics


def _span_metrics(schedule: Schedule, timeline: Timeline) -> Metrics:
    """Return when each convolution and pooling runs in either direction, and when its inputs are copied (Figure 7)."""
    graph = schedule.graph
    drawn = [layer for layer in graph.forward_layers if layer.has_kind(Kind.CONVOLUTION, Kind.POOLING)]
    names = {layer.layer: graph.layers[layer.layer] for layer in drawn}
    offloading = {block: layer.layer for layer in graph.forward_layers for block in layer.reads}
    metrics: Metrics = {}
    for span in timeline.spans:
        match schedule.instructions[span.instruction]:
            case Compute(task):
                layer, work = graph.tasks[task].layer, str(graph.tasks[task].phase)
            case Offload(block) | Prefetch(block) as copy:
                # what the backward pass alone reads, such as a mask, is of no layer
                layer = offloading.get(block, -1)
                work = type(copy).__name__.lower()
            case _:
                continue
        if layer in names:
            start, end = f"{work}_start_s:{names[layer]}", f"{work}_end_s:{names[layer]}"
            metrics[start] = min(span.start_s, metrics.get(start, span.start_s))
            metrics[end] = span.end_s
    return metrics


def _layers(graph: TaskGraph) -> tuple[LayerTasks, ...]:
    return graph.forward_layers + graph.backward_layers


def _needed_bytes(graph: TaskGraph, layer: LayerTasks) -> int:
    """Return the bytes that a layer needs while it runs: all blocks that it touches, and its workspace."""
    return graph.size_bytes(layer.touches) + max(task.workspace_bytes for task in layer.tasks)


def _weight_bytes(graph: TaskGraph, layer: LayerTasks) -> int:
    return graph.size_bytes({b for b in layer.touches if graph.blocks[b].role is Role.WEIGHT})


def _map_bytes(graph: TaskGraph, layer: LayerTasks) -> int:
    """Return the bytes that a layer needs in addition to its weights: its feature maps and its workspace."""
    return _needed_bytes(graph, layer) - _weight_bytes(graph, layer)


def _of_classifier(graph: TaskGraph) -> set[int]:
    """Return the blocks that only layers after feature extraction touch."""
    features = {layer.layer for layer in feature_layers(graph)}
    by_features = {block for layer in _layers(graph) if layer.layer in features for block in layer.touches}
    return {block for layer in _layers(graph) for block in layer.touches} - by_features


def _classifier_weight_bytes(graph: TaskGraph) -> int:
    """Return the bytes of the classifier's weights and what is held for them, where they stay on the device."""
    return graph.size_bytes({b for b in _of_classifier(graph) if graph.blocks[b].is_external})


def _first_layer_reuse_s(spans: list[tuple[Task, Span]]) -> float:
    """Return how long the first layer's feature maps are idle, between its forward and its backward."""
    first = spans[0][0].layer
    end_s = max(span.end_s for task, span in spans if task.layer == first and task.phase is Phase.FORWARD)
    backward = (span.start_s for task, span in spans if task.layer == first and task.phase is Phase.BACKWARD)
    return min(backward, default=end_s) - end_s
