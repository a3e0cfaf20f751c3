"""Traces of a run: every span, and the memory held over time."""

import json

import pytest

from membench.pictures.trace import trace_json
from membench.strategies.base import strategies
from tests.helpers.planning.runs import network_run


@pytest.mark.parametrize("strategy", strategies())
def test_a_trace_has_every_span_and_the_peak(strategy: str) -> None:
    run = network_run(strategy)
    events = json.loads(trace_json(run))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["args"]["instruction"] for event in spans] == [s.instruction for s in run.runs[0].timeline.spans]
    last_us = max(event["ts"] + event["dur"] for event in spans)
    assert last_us == pytest.approx(1e6 * max(span.end_s for span in run.runs[0].timeline.spans))
    counts = [event for event in events if event["ph"] == "C"]
    assert counts[0]["ts"] == 0.0
    assert max(sum(event["args"].values()) for event in counts) == run.peak_bytes
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {tracks[event["tid"]] for event in spans} == {span.stream for span in run.runs[0].timeline.spans}
