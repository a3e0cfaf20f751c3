"""A step as a trace for chrome://tracing and Perfetto: a track per stream, and memory by holder as a counter.

The format is Google's "Trace Event Format": complete events (``X``), counters (``C``) and names of tracks (``M``);
times are in microseconds.
"""

import json
from collections.abc import Iterator
from typing import Any

from membench.core.graph.schedule import Compute
from membench.pictures.observed_step import ObservedStep
from membench.pictures.occupancy import occupancy

_US_PER_S = 1e6
_PROCESS = 1


def trace_json(step: ObservedStep) -> str:
    """Return the trace as the text of a ``.json`` file."""
    events = [*_names(step), *_spans(step), *_memory(step)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _names(step: ObservedStep) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": step.title}}
    for track, stream in enumerate(step.streams):
        named = {"ph": "M", "pid": _PROCESS, "tid": track}
        yield {**named, "name": "thread_name", "args": {"name": stream}}
        yield {**named, "name": "thread_sort_index", "args": {"sort_index": track}}


def _spans(step: ObservedStep) -> Iterator[dict[str, Any]]:
    tracks = {stream: track for track, stream in enumerate(step.streams)}
    for run, position, span in step.spans():
        graph = run.schedule.graph
        work, activity = run.work(span), run.activity(span)
        arguments: dict[str, Any] = {"micro_batch": position, "instruction": span.instruction, "layer": run.label(span)}
        if isinstance(work, Compute):
            name = graph.tasks[work.task].name
            arguments["workspace_bytes"] = graph.tasks[work.task].workspace_bytes
        else:
            name = f"{activity} {graph.blocks[work.block].name}"
            arguments["size_bytes"] = graph.blocks[work.block].size_bytes
        yield {
            "ph": "X",
            "pid": _PROCESS,
            "tid": tracks[span.stream],
            "cat": activity,
            "name": name,
            "ts": span.start_s * _US_PER_S,
            "dur": (span.end_s - span.start_s) * _US_PER_S,
            "args": arguments,
        }


def _memory(step: ObservedStep) -> Iterator[dict[str, Any]]:
    held = occupancy(step)
    starts_s = [0.0, *held.ends_s.tolist()]  # the last value stays until the step's end
    columns = zip(*(values.tolist() for values in held.held_bytes.values()), strict=True)
    for start_s, column in zip(starts_s, columns, strict=False):
        yield {
            "ph": "C",
            "pid": _PROCESS,
            "name": "device memory (bytes)",
            "ts": start_s * _US_PER_S,
            "args": dict(zip(held.held_bytes, column, strict=True)),
        }
