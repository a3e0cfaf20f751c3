"""Layrub's own numbers of a run: depth, time by Caffe's iterations and by epochs, and what layers keep inside."""

import statistics
from collections.abc import Mapping
from typing import Any

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import GradientOf, Kind, Phase, Role
from membench.core.graph.timeline import Timeline
from membench.core.hardware.device import DeviceProfile
from membench.core.record import Outcome, Record
from membench.lab.papers.reading.experiment import Paper, PaperCell, framework_of
from membench.planning.memory.liveness import peak_bytes
from membench.steps.plan import Runs
from membench.sweep.cells.metrics import Metrics, compute_spans

ITERATIONS = 20
"""In a time of Table 5, as it is headed."""

INTERMEDIATE_ROLES = frozenset({Role.ACTIVATION, Role.GRADIENT, Role.INTERNAL})
"""Activations, their gradients, and what layers keep inside (Section 6)."""


def step_metrics(plan: Runs, timelines: tuple[Timeline, ...], device: DeviceProfile | None) -> Metrics:
    """Return the size of all intermediate data and, of a simulated step, gradients' times and migration's speed-up."""
    first = plan[0].schedule
    metrics: Metrics = {"intermediate_memory_bytes": peak_bytes(first, INTERMEDIATE_ROLES)}
    if device is not None and timelines:
        metrics |= _gradient_spans(first, timelines[0])
        if times := _migration_times(first, timelines[0], device):
            metrics["migration_speedup"] = statistics.fmean(computing / copying for computing, copying in times)
            metrics["migration_speedup_of_sums"] = sum(c for c, _ in times) / sum(c for _, c in times)
    return metrics


def _gradient_spans(schedule: Schedule, timeline: Timeline) -> Metrics:
    """Return when each convolution's gradients are computed, if by tasks of their own (Figure 8)."""
    graph = schedule.graph
    metrics: Metrics = {}
    for task, span in compute_spans(schedule, timeline):
        computed = {graph.blocks[block].role for block in task.writes}
        is_both = {Role.GRADIENT, Role.WEIGHT_GRADIENT} <= computed
        is_part = task.kind is Kind.CONVOLUTION and task.phase is Phase.BACKWARD and not is_both
        if is_part or task.gradient_of is GradientOf.BIAS:
            layer = graph.layers[task.layer]
            metrics[f"{task.gradient_of}_gradient_start_s:{layer}"] = span.start_s
            metrics[f"{task.gradient_of}_gradient_end_s:{layer}"] = span.end_s
    return metrics


def _migration_times(schedule: Schedule, timeline: Timeline, device: DeviceProfile) -> list[tuple[float, float]]:
    """Return for each convolution the time to compute its output again, and the time to copy it back (Section 6)."""
    graph = schedule.graph
    return [
        (
            span.end_s - span.start_s,
            device.copy_latency_s + graph.size_bytes(task.creates) / device.host_to_device_bytes_per_s,
        )
        for task, span in compute_spans(schedule, timeline)
        if task.kind is Kind.CONVOLUTION and task.phase is Phase.FORWARD
    ]


def trained_layers(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    """Return the number of layers of a network that ran, 0 if it ran out of memory."""
    if record.outcome is Outcome.OUT_OF_MEMORY:
        return 0
    return paper.models[cell.model]["layers"] if record.outcome is Outcome.OK else None


def iteration_time_s(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    """Return the time of one iteration as the framework counts it; its last step exchanges gradients."""
    if record.outcome is not Outcome.OK:
        return None
    steps = steps_per_iteration(paper.models[cell.model], paper.systems[cell.system])
    step_time_s = record.metrics["step_time_s"]
    local_step_time_s = record.metrics.get("local_step_time_s", step_time_s)  # without an exchange
    return (steps - 1) * local_step_time_s + step_time_s


def epoch_time_s(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    """Return the time of as many iterations as there are batches in the training set (`Paper.training_images`)."""
    iteration_s = iteration_time_s(paper, cell, record)
    if iteration_s is None:
        return None
    images = paper.training_images[paper.models[cell.model]["dataset"]]
    return iteration_s * images / record.configuration["batch_size"]


def table_5_time_s(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    """Return the time that Table 5 prints, see `table_5_steps`."""
    if record.outcome is not Outcome.OK:
        return None
    model, batch_size = paper.models[cell.model], record.configuration["batch_size"]
    steps = table_5_steps(model, paper.systems[cell.system], paper.training_images, batch_size)
    return steps * record.metrics["step_time_s"]


def runtime_memory_bytes(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    """Return what nvidia-smi shows of a run: its peak, and what the card holds in use without any process."""
    if record.outcome is not Outcome.OK:
        return None
    return record.metrics["peak_memory_bytes"] + (record.configuration["device"].get("idle_bytes") or 0)


def table_5_steps(
    model: Mapping[str, Any], system: Mapping[str, Any], training_images: Mapping[str, int], batch_size: int
) -> float:
    """Return the forward and backward passes in a time of Table 5.

    They are those of 20 iterations, or of an epoch where an entry of `Paper.models` has ``table_5: epoch``.
    """
    if model.get("table_5") == "epoch":
        return training_images[model["dataset"]] / batch_size
    return ITERATIONS * steps_per_iteration(model, system)


def steps_per_iteration(model: Mapping[str, Any], system: Mapping[str, Any]) -> int:
    """Return the forward and backward passes that a system's framework calls one iteration, Caffe's ``iter_size``.

    In an entry of `Paper.models`, ``steps_per_iteration`` names the frameworks in which it is not one.
    """
    return int(model.get("steps_per_iteration", {}).get(framework_of(model, system), 1))
