"""What a record says of a schedule and of how it ran: numbers by name, the unit in the name."""

from collections import defaultdict
from collections.abc import Iterator

from membench.device import DeviceProfile
from membench.planning.features import feature_layers, has_kind
from membench.planning.liveness import peak_bytes
from membench.schedule import Compute, Schedule
from membench.step import StepMeasurement
from membench.task_graph import Kind, LayerTasks, Phase, Role, Task, TaskGraph
from membench.timeline import Span, Timeline

MAP_ROLES = frozenset({Role.ACTIVATION, Role.GRADIENT})
"""What Layrub's Figures 9 to 11 count: activations and their gradients, nothing that a layer holds inside."""

Metrics = dict[str, float]
_WITH_WEIGHTS = frozenset({Kind.CONVOLUTION, Kind.LINEAR})


def memory_metrics(schedule: Schedule) -> Metrics:
    """Return what follows from the program alone, whether the device has that memory or not."""
    graph = schedule.graph
    return {
        "required_memory_bytes": schedule.peak_bytes,
        "map_memory_bytes": peak_bytes(schedule, MAP_ROLES),
        "activation_memory_bytes": peak_bytes(schedule, frozenset({Role.ACTIVATION})),
        "weight_bytes": sum(block.size_bytes for block in graph.blocks if block.role is Role.WEIGHT),
        "lower_bound_bytes": graph.lower_bound_bytes,
        "overhead_bytes": graph.overhead_bytes,
        "operations": sum(task.operations for task in graph.tasks),
        "tasks": len(graph.tasks),
        "unused_by_any_layer_bytes": schedule.peak_bytes
        - max(_needed_bytes(graph, run) for run in _runs(graph)),
        "feature_extraction_bytes": schedule.peak_bytes - _classifier_bytes(graph),
    }


def time_metrics(measurement: StepMeasurement) -> Metrics:
    """Return how a step ran."""
    return {
        "average_memory_bytes": measurement.average_bytes,
        "step_time_s": measurement.step_time_s,
        "images_per_s": measurement.images_per_s,
        "compute_time_s": measurement.compute_time_s,
        "exposed_transfer_s": measurement.exposed_transfer_s,
        "offloaded_bytes": measurement.offloaded_bytes,
        "prefetched_bytes": measurement.prefetched_bytes,
        "unique_saved_bytes": measurement.unique_saved_bytes,
    }


def oracular_metrics(schedule: Schedule, timeline: Timeline, device: DeviceProfile) -> Metrics:
    """Return what a device that is like this one, but has the memory, would do (vDNN 4.2's oracular baseline).

    Feature extraction is what vDNN times: the step without the classifier's tasks.
    """
    graph = schedule.graph
    spans = list(_compute_spans(schedule, timeline))
    features = {layer.layer for layer in feature_layers(graph)}
    busy_s: defaultdict[str, float] = defaultdict(float)
    for task, span in spans:
        busy_s["all"] += span.end_s - span.start_s
        busy_s["features"] += (span.end_s - span.start_s) * (task.layer in features)
        busy_s["convolution"] += (span.end_s - span.start_s) * (task.kind is Kind.CONVOLUTION)
    feature_time_s = timeline.step_time_s - (busy_s["all"] - busy_s["features"])
    return {
        "oracular_step_time_s": timeline.step_time_s,
        "oracular_feature_images_per_s": graph.batch_size / feature_time_s,
        "oracular_compute_time_s": busy_s["all"],
        "oracular_feature_compute_time_s": busy_s["features"],
        "convolution_time_s": busy_s["convolution"],
        "first_layer_reuse_s": _first_layer_reuse_s(spans),
        "link_bytes_per_s": max(device.host_to_device_bytes_per_s, device.device_to_host_bytes_per_s),
        "memory_bytes_per_s": device.memory_bytes_per_s,
    }


def layer_metrics(schedule: Schedule, timeline: Timeline) -> Metrics:
    """Return numbers of single layers with weights, as ``"metric:layer"``."""
    graph = schedule.graph
    metrics: Metrics = {}
    for run in graph.forward_layers:
        if has_kind(run, _WITH_WEIGHTS):
            weights = [b for b in run.touches if graph.blocks[b].role is Role.WEIGHT]
            weight_bytes = sum(graph.blocks[b].size_bytes for b in weights)
            name = graph.layers[run.layer]
            metrics[f"layer_weight_bytes:{name}"] = weight_bytes
            metrics[f"layer_map_bytes:{name}"] = _needed_bytes(graph, run) - weight_bytes
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
    touched = sum(graph.blocks[block].size_bytes for block in run.touches)
    return touched + max(task.workspace_bytes for task in run.tasks)


def _classifier_bytes(graph: TaskGraph) -> int:
    features = {layer.layer for layer in feature_layers(graph)}
    by_features = {block for run in _runs(graph) if run.layer in features for block in run.touches}
    by_others = {block for run in _runs(graph) for block in run.touches} - by_features
    return sum(graph.blocks[block].size_bytes for block in by_others)


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
