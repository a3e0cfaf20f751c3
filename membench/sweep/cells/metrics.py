"""General numbers of a cell's record: of a schedule and of how it ran, by name, the unit in the name."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from membench.core.graph.schedule import Compute, Decode, Encode, Schedule
from membench.core.graph.task_graph import Kind, Role, Task
from membench.core.graph.timeline import Span, Timeline
from membench.core.hardware.device import DeviceProfile
from membench.core.record import AT_PEAK
from membench.planning.memory.device_memory import DeviceMemory
from membench.planning.memory.holders import held_at_peak_bytes
from membench.planning.memory.liveness import peak_bytes
from membench.steps.measurement import StepMeasurement
from membench.steps.plan import Runs
from membench.strategies.eager import Eager
from membench.strategies.pytorch import PyTorch

MAP_ROLES = frozenset({Role.ACTIVATION, Role.GRADIENT})
"""Activations and their gradients, without what a layer holds inside, as Layrub's Figures 9 to 11 count them."""

Metrics = dict[str, float]
StepMetrics = Callable[[Runs, tuple[Timeline, ...], DeviceProfile | None], Mapping[str, float]]
"""A function that adds one paper's numbers to a record, from a step's plan and a timeline of each of its schedules.

The device is the simulated one, None if the step was measured. A number with a colon in its name, ``metric:layer``, is
of a layer.
"""

FLOAT_BYTES = 4
"""Of a single-precision number."""
_PEAKS = ("required_memory_bytes", "map_memory_bytes", "activation_memory_bytes", "gradient_memory_bytes")


@dataclass
class CellNumbers:
    """Numbers of a cell, as its `Record` has them; they are added one after another."""

    metrics: Metrics = field(default_factory=dict)
    layer_metrics: Metrics = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def add(self, numbers: Mapping[str, float]) -> None:
        """Add numbers of the step and, those with a colon in their name, of its layers."""
        for name, value in numbers.items():
            (self.layer_metrics if ":" in name else self.metrics)[name] = value


def plan_metrics(parts: Runs) -> Metrics:
    """Return what follows from a step's schedules alone, whether the device has that memory or not.

    Of a step in micro-batches the numbers are of its first one, which is the largest; peaks are of the whole step.
    Batch norm takes its statistics over ``batch_norm_samples``.
    """
    first = parts[0].schedule
    of_parts = [_memory_metrics(part.schedule) for part in parts]
    metrics = of_parts[0] | {name: max(found[name] for found in of_parts) for name in _PEAKS}
    largest = max((part.schedule for part in parts), key=lambda schedule: schedule.peak_bytes)
    metrics.update(parts_metrics(held_at_peak_bytes(largest)))
    metrics.update(micro_batch_size=first.graph.batch_size, micro_batches=sum(part.count for part in parts))
    if any(task.kind is Kind.BATCH_NORM for task in first.graph.tasks):
        metrics["batch_norm_samples"] = first.graph.batch_size
    return metrics


def parts_metrics(held_bytes: Mapping[str, int]) -> Metrics:
    """Return each holder's `held_at_peak_bytes` by metric; together they are ``required_memory_bytes``."""
    words = str.maketrans(" ", "_", "'")
    return {holder.translate(words) + AT_PEAK: size for holder, size in held_bytes.items()}


def device_memory_metrics(memory: DeviceMemory) -> Metrics:
    """Return the three columns of a step's memory on a card, and the part of the second that is not in use."""
    return {
        "allocated_bytes": memory.allocated_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "fragmentation_bytes": memory.fragmentation_bytes,
        **({} if memory.used_bytes is None else {"used_bytes": memory.used_bytes}),
    }


def plan_note(parts: Runs) -> str:
    """Return a sentence about a method that found nothing to do, empty if it did or that is the method."""
    first = parts[0].schedule
    is_whole = sum(part.count for part in parts) == 1
    if first.strategy in (Eager.name, PyTorch.name) or not is_whole or not first.note:
        return ""
    return f"{first.strategy} found nothing to do: {first.note}"


def _memory_metrics(schedule: Schedule) -> Metrics:
    graph = schedule.graph
    return {
        "rounding": schedule.rounding,
        "planned_density": _planned_density(schedule),
        "required_memory_bytes": schedule.peak_bytes,
        "map_memory_bytes": peak_bytes(schedule, MAP_ROLES),
        "activation_memory_bytes": peak_bytes(schedule, frozenset({Role.ACTIVATION})),
        "gradient_memory_bytes": peak_bytes(schedule, frozenset({Role.GRADIENT})),
        "workspace_bytes": graph.largest_workspace_bytes,
        "external_bytes": graph.external_bytes - graph.overhead_bytes,
        "weight_bytes": sum(b.size_bytes for b in graph.blocks if b.role is Role.WEIGHT and not b.is_part),
        "lower_bound_bytes": graph.lower_bound_bytes,
        "overhead_bytes": graph.overhead_bytes,
        "operations": sum(task.operations for task in graph.tasks),
        "tasks": len(graph.tasks),
    }


def _planned_density(schedule: Schedule) -> float:
    """Return the fraction of non-zeros that room was made for, averaged over the encoded activations by size."""
    graph = schedule.graph
    dense_bytes = room_bytes = 0
    for item in schedule.instructions:
        if isinstance(item, Encode):
            dense, encoded = graph.blocks[item.block].size_bytes, graph.blocks[item.encoded].size_bytes
            dense_bytes += dense
            room_bytes += FLOAT_BYTES * item.codec.capacity(dense // FLOAT_BYTES, encoded)
    return room_bytes / dense_bytes if dense_bytes else 1.0


def time_metrics(measurement: StepMeasurement) -> Metrics:
    """Return the times of a step that fits, and the bytes that it copies."""
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


def oracular_metrics(parts: Runs, timelines: tuple[Timeline, ...]) -> Metrics:
    """Return the times on a device like the simulated one with enough memory, vDNN's "oracular" device (4.2)."""
    step_time_s = 0.0
    for part, run in zip(parts, timelines, strict=True):
        step_time_s += part.count * run.step_time_s
    first, timeline = parts[0].schedule, timelines[0]
    codec = {i for i, item in enumerate(first.instructions) if isinstance(item, Encode | Decode)}
    return {
        "codec_time_s": sum(span.end_s - span.start_s for span in timeline.spans if span.instruction in codec),
        "exposed_codec_time_s": timeline.exposed_s(codec),
        "oracular_step_time_s": step_time_s,
        "oracular_images_per_s": sum(part.samples for part in parts) / step_time_s,
        "convolution_time_s": busy_time_s(parts, timelines, lambda task: task.kind is Kind.CONVOLUTION),
    }


def busy_time_s(parts: Runs, timelines: tuple[Timeline, ...], counts: Callable[[Task], bool]) -> float:
    """Return the time of all tasks of a step for which `counts` holds."""
    total_s = 0.0
    for part, timeline in zip(parts, timelines, strict=True):
        for task, span in compute_spans(part.schedule, timeline):
            if counts(task):
                total_s += part.count * (span.end_s - span.start_s)
    return total_s


def compute_spans(schedule: Schedule, timeline: Timeline) -> Iterator[tuple[Task, Span]]:
    """Yield each task that ran, with its span."""
    for span in timeline.spans:
        instruction = schedule.instructions[span.instruction]
        if isinstance(instruction, Compute):
            yield schedule.graph.tasks[instruction.task], span
