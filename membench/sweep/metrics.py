"""What a record says of a schedule and of how it ran: numbers by name, the unit in the name."""

import statistics
from collections import defaultdict
from collections.abc import Iterator

from membench.core.device import DeviceProfile
from membench.core.schedule import Compute, RepeatedSchedule, Schedule
from membench.core.task_graph import EXTERNAL_ROLES, Kind, LayerTasks, Phase, Role, Task, TaskGraph
from membench.core.timeline import Span, Timeline
from membench.planning.features import feature_layers
from membench.planning.liveness import average_bytes, live_bytes, peak_bytes
from membench.steps.measurement import StepMeasurement
from membench.sweep.encoding_metrics import codec_time_metrics, encoding_metrics

MAP_ROLES = frozenset({Role.ACTIVATION, Role.GRADIENT})
"""What Layrub's Figures 9 to 11 count: activations and their gradients, nothing that a layer holds inside."""

Metrics = dict[str, float]
_PEAKS = ("required_memory_bytes", "map_memory_bytes", "activation_memory_bytes", "gradient_memory_bytes")


def plan_metrics(parts: tuple[RepeatedSchedule, ...]) -> Metrics:
    """Return what follows from a step's programs alone, whether the device has that memory or not.

    Of a step in micro-batches that is its first one, which is the largest; peaks are the whole step's. Batch norm takes its
    statistics over ``batch_norm_samples``.
    """
    first = parts[0].schedule
    metrics = memory_metrics(first)
    for name in _PEAKS:
        metrics[name] = max(memory_metrics(part.schedule)[name] for part in parts)
    metrics.update(micro_batch_size=first.graph.batch_size, micro_batches=sum(part.count for part in parts))
    if any(task.kind is Kind.BATCH_NORM for task in first.graph.tasks):
        metrics["batch_norm_samples"] = first.graph.batch_size
    return metrics


def memory_metrics(schedule: Schedule) -> Metrics:
    """Return what follows from one program alone."""
    graph = schedule.graph
    convolutions = [run for run in graph.forward_layers if run.has_kind(Kind.CONVOLUTION)]
    return encoding_metrics(schedule) | {
        "required_memory_bytes": schedule.peak_bytes,
        "map_memory_bytes": peak_bytes(schedule, MAP_ROLES),
        "activation_memory_bytes": peak_bytes(schedule, frozenset({Role.ACTIVATION})),
        "gradient_memory_bytes": peak_bytes(schedule, frozenset({Role.GRADIENT})),
        "workspace_bytes": graph.largest_workspace_bytes,
        "external_bytes": graph.external_bytes - graph.overhead_bytes,
        "weight_bytes": sum(b.size_bytes for b in graph.blocks if b.role is Role.WEIGHT and not b.is_part),
        "lower_bound_bytes": graph.lower_bound_bytes,
        "neediest_task_bytes": _neediest_task_bytes(graph),
        "overhead_bytes": graph.overhead_bytes,
        "operations": sum(task.operations for task in graph.tasks),
        "tasks": len(graph.tasks),
        "unused_by_any_layer_bytes": schedule.peak_bytes
        - max(_needed_bytes(graph, run) for run in _runs(graph)),
        "convolution_weight_bytes": sum(_weight_bytes(graph, run) for run in convolutions),
        "convolution_map_bytes": sum(_map_bytes(graph, run) for run in convolutions),
        "feature_extraction_bytes": schedule.peak_bytes - graph.size_bytes(_of_classifier(graph)),
        "managed_memory_bytes": schedule.peak_bytes - _classifier_weight_bytes(graph),
    }


def time_metrics(measurement: StepMeasurement) -> Metrics:
    """Return how a step ran."""
    return {
        "average_memory_bytes": measurement.average_bytes,
        "step_time_s": measurement.step_time_s,
        "images_per_s": measurement.images_per_s,
        "compute_time_s": measurement.compute_time_s,
        "copy_time_s": measurement.copy_time_s,
        "exchange_time_s": measurement.exchange_time_s,
        "exposed_transfer_s": measurement.exposed_transfer_s,
        "offloaded_bytes": measurement.offloaded_bytes,
        "prefetched_bytes": measurement.prefetched_bytes,
        "transferred_bytes": measurement.offloaded_bytes + measurement.prefetched_bytes,
        "unique_saved_bytes": measurement.unique_saved_bytes,
    }


def oracular_metrics(
    parts: tuple[RepeatedSchedule, ...], timelines: tuple[Timeline, ...], device: DeviceProfile
) -> Metrics:
    """Return what a device that is like this one, but has the memory, would do (vDNN 4.2's oracular baseline).

    Feature extraction is what vDNN times: the step without the classifier's tasks.

    Args:
        timelines: of one run of each part.
    """
    graph = parts[0].schedule.graph
    features = {layer.layer for layer in feature_layers(graph)}
    busy_s: defaultdict[str, float] = defaultdict(float)
    for part, timeline in zip(parts, timelines, strict=True):
        busy_s["step"] += part.count * timeline.step_time_s
        for task, span in _compute_spans(part.schedule, timeline):
            time_s = part.count * (span.end_s - span.start_s)
            busy_s["all"] += time_s
            busy_s["features"] += time_s * (task.layer in features)
            busy_s["convolution"] += time_s * (task.kind is Kind.CONVOLUTION)
    samples = sum(part.samples for part in parts)
    feature_time_s = busy_s["step"] - (busy_s["all"] - busy_s["features"])
    first, timeline = parts[0].schedule, timelines[0]
    return codec_time_metrics(first, timeline) | {
        "managed_average_bytes": average_bytes(first, timeline) - _classifier_weight_bytes(graph),
        "managed_average_over_tasks_bytes": _average_over_tasks_bytes(first)
        - _classifier_weight_bytes(graph),
        "oracular_step_time_s": busy_s["step"],
        "oracular_images_per_s": samples / busy_s["step"],
        "oracular_feature_images_per_s": samples / feature_time_s,
        "oracular_compute_time_s": busy_s["all"],
        "oracular_feature_compute_time_s": busy_s["features"],
        "convolution_time_s": busy_s["convolution"],
        "first_layer_reuse_s": _first_layer_reuse_s(list(_compute_spans(first, timeline))),
        "link_bytes_per_s": max(device.host_to_device_bytes_per_s, device.device_to_host_bytes_per_s),
        "memory_bytes_per_s": device.memory_bytes_per_s,
    }


def layer_metrics(schedule: Schedule, timeline: Timeline) -> Metrics:
    """Return numbers of single layers with weights, as ``"metric:layer"``, and what the method decided on."""
    graph = schedule.graph
    metrics: Metrics = dict(schedule.decisions)
    for run in graph.forward_layers:
        if run.has_kind(Kind.CONVOLUTION, Kind.LINEAR):
            name = graph.layers[run.layer]
            metrics[f"layer_weight_bytes:{name}"] = _weight_bytes(graph, run)
            metrics[f"layer_map_bytes:{name}"] = _map_bytes(graph, run)
    for task, span in _compute_spans(schedule, timeline):
        if task.kind is Kind.CONVOLUTION:
            direction = "backward" if task.phase is Phase.BACKWARD else "forward"
            name = f"{direction}_bytes_per_s:{graph.layers[task.layer]}"
            bytes_per_s = task.moved_bytes / (span.end_s - span.start_s)
            metrics[name] = max(bytes_per_s, metrics.get(name, 0.0))
    return metrics


def _runs(graph: TaskGraph) -> tuple[LayerTasks, ...]:
    return graph.forward_layers + graph.backward_layers


def _needed_bytes(graph: TaskGraph, run: LayerTasks) -> int:
    """Return what a layer needs while it runs: all that it touches, and its workspace."""
    return graph.size_bytes(run.touches) + max(task.workspace_bytes for task in run.tasks)


def _neediest_task_bytes(graph: TaskGraph) -> int:
    """Return what a schedule must hold if even weights may leave the device (moDNN 7.1, its second lower bound)."""
    return max(graph.size_bytes({*task.reads, *task.writes}) + task.workspace_bytes for task in graph.tasks)


def _weight_bytes(graph: TaskGraph, run: LayerTasks) -> int:
    return graph.size_bytes({b for b in run.touches if graph.blocks[b].role is Role.WEIGHT})


def _map_bytes(graph: TaskGraph, run: LayerTasks) -> int:
    """Return what a layer needs beside its weights: its maps and its workspace."""
    return _needed_bytes(graph, run) - _weight_bytes(graph, run)


def _of_classifier(graph: TaskGraph) -> set[int]:
    """Return the blocks that only layers after feature extraction touch."""
    features = {layer.layer for layer in feature_layers(graph)}
    by_features = {block for run in _runs(graph) if run.layer in features for block in run.touches}
    return {block for run in _runs(graph) for block in run.touches} - by_features


def _classifier_weight_bytes(graph: TaskGraph) -> int:
    """Return the bytes of the classifier's weights and of what is held for them all the time."""
    return graph.size_bytes({b for b in _of_classifier(graph) if graph.blocks[b].role in EXTERNAL_ROLES})


def _average_over_tasks_bytes(schedule: Schedule) -> float:
    """Return the memory in use averaged over the tasks, whatever time they take."""
    held_bytes = zip(schedule.instructions, live_bytes(schedule), strict=True)
    return statistics.fmean(held for instruction, held in held_bytes if isinstance(instruction, Compute))


def _compute_spans(schedule: Schedule, timeline: Timeline) -> Iterator[tuple[Task, Span]]:
    for span in timeline.spans:
        instruction = schedule.instructions[span.instruction]
        if isinstance(instruction, Compute):
            yield schedule.graph.tasks[instruction.task], span


def _first_layer_reuse_s(spans: list[tuple[Task, Span]]) -> float:
    """Return how long the first layer's maps lie idle: from the end of its forward to the start of its backward."""
    first = spans[0][0].layer
    end_s = max(span.end_s for task, span in spans if task.layer == first and task.phase is Phase.FORWARD)
    backward = (span.start_s for task, span in spans if task.layer == first and task.phase is Phase.BACKWARD)
    return min(backward, default=end_s) - end_s
