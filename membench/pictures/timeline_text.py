"""A step's timeline as text, and as values for JSON and tables: a row for each work of a stream."""

from collections.abc import Iterator
from typing import Any

from membench.core.document import Element, Table
from membench.core.graph.schedule import Compute
from membench.core.units import format_bytes, format_seconds
from membench.pictures.observed_step import ObservedStep


def elements(step: ObservedStep) -> Iterator[Element]:
    """Yield what the streams do, and for how long."""
    yield f"{step.title}: peak {format_bytes(step.peak_bytes)}, step {format_seconds(step.step_time_s)}"
    found: dict[tuple[str, str], list[float]] = {}
    for run, _, span in step.spans():
        found.setdefault((span.stream, run.activity(span)), []).append(span.end_s - span.start_s)
    whole_s = step.step_time_s or 1.0
    rows = [
        (stream, activity, f"{len(times_s):,}", format_seconds(sum(times_s)), f"{sum(times_s) / whole_s:.1%}")
        for (stream, activity), times_s in found.items()
    ]
    yield Table((("stream", "activity", "works", "time", "share of the step"), *rows), keys=2)


def values(step: ObservedStep) -> dict[str, Any]:
    """Return the timeline as values that JSON has."""
    return {
        "title": step.title,
        "peak_bytes": step.peak_bytes,
        "measured_peak_bytes": step.measured_peak_bytes,
        "capacity_bytes": step.capacity_bytes,
        "step_time_s": step.step_time_s,
        "spans": list(rows(step)),
    }


def rows(step: ObservedStep) -> Iterator[dict[str, Any]]:
    """Yield each work of a stream as a row, in the order of issue."""
    for run, position, span in step.spans():
        work, graph = run.work(span), run.schedule.graph
        yield {
            "stream": span.stream,
            "start_s": span.start_s,
            "end_s": span.end_s,
            "activity": run.activity(span),
            "name": graph.tasks[work.task].name if isinstance(work, Compute) else graph.blocks[work.block].name,
            "layer": run.label(span),
            "micro_batch": position,
            "instruction": span.instruction,
        }
