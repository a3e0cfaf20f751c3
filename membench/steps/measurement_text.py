"""A step's measurement as text, and as values for JSON and tables."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from membench.core.document import Element, Facts
from membench.core.units import format_bytes, format_seconds
from membench.steps.measurement import StepMeasurement

_NOT_VALUES = ("throughput", "plan", "timelines")


def elements(measurement: StepMeasurement) -> Iterator[Element]:
    """Yield the measurement as it is printed."""
    parts = sum(run.count for run in measurement.plan)
    divided = f", in {parts} micro-batches" if parts > 1 else ""
    yield f"batch {measurement.throughput.images_per_step}{divided}, {measurement.source}"
    yield Facts(tuple(_facts(measurement)))


def _facts(measurement: StepMeasurement) -> Iterator[tuple[str, str]]:
    yield "peak memory", f"{format_bytes(measurement.peak_bytes)} ({measurement.peak_bytes:,} bytes)"
    yield "on average", format_bytes(measurement.average_bytes)
    yield "step time", format_seconds(measurement.step_time_s)
    yield "throughput", f"{measurement.images_per_s:,.1f} samples/s"
    yield "computing", format_seconds(measurement.compute_time_s)
    if measurement.copy_time_s:
        out, back = format_bytes(measurement.offloaded_bytes), format_bytes(measurement.prefetched_bytes)
        yield "copying", f"{format_seconds(measurement.copy_time_s)}; {out} to the host, {back} back"
    if measurement.exchange_time_s:
        yield "exchanging", format_seconds(measurement.exchange_time_s)
    if measurement.copy_time_s or measurement.exchange_time_s:
        yield "exposed", f"{format_seconds(measurement.exposed_transfer_s)} of that, while nothing computes"


def values(measurement: StepMeasurement) -> dict[str, Any]:
    """Return the measurement as values that JSON has; bytes and seconds are in the names."""
    samples = measurement.throughput
    return {
        **{each.name: getattr(measurement, each.name) for each in fields(measurement) if each.name not in _NOT_VALUES},
        "batch_size": samples.images_per_step,
        "step_time_s": measurement.step_time_s,
        "images_per_s": measurement.images_per_s,
        "interquartile_images_per_s": samples.interquartile_images_per_s,
        "window_times_s": samples.window_times_s,
        "steps_per_window": samples.steps_per_window,
    }


def rows(measurement: StepMeasurement) -> Iterator[dict[str, Any]]:
    """Yield the measurement as a row of numbers."""
    yield {name: value for name, value in values(measurement).items() if not isinstance(value, tuple)}
