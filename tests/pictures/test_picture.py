"""Pictures of a run: everything that ran is in them, and those of deep networks are quick and small."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.core.graph.timeline import Span
from membench.pictures.occupancy import occupancy
from membench.pictures.picture import busy_share, draw, fitting_label, save
from membench.pictures.trace import trace_json
from tests.helpers.planning.runs import chain_run, network_run

INTERVALS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 50)), min_size=1)


def test_a_long_title_is_not_cut_off() -> None:
    title = "resnet1001, batch 256, superneurons, budget 6.0 GB, micro-batch fitted, simulated on k40m under MXNet"
    figure = draw(replace(chain_run("eager", [100] * 3), title=f"{title}, in 2 micro-batches of 128"))
    shown = next(text for text in figure.texts if text.get_text() == figure.get_suptitle())
    assert shown.get_window_extent().x1 < figure.bbox.x1


def test_a_hostile_name_is_drawn_as_it_is(tmp_path: Path) -> None:
    title = r"$\frac{1$ <script>alert('x')</script> `touch made` ../.. $x^$"
    run = replace(chain_run("eager", [100] * 3), title=title)
    assert all(path.stat().st_size > 1000 for path in save(draw(run), tmp_path / "run"))
    assert json.loads(trace_json(run))["traceEvents"][0]["args"] == {"name": title}


@pytest.mark.parametrize("strategy", ["layrub_hybrid", "memonger"])
def test_a_picture_names_what_is_in_it(strategy: str, tmp_path: Path) -> None:
    run = network_run(strategy)
    figure = draw(run)
    memory, streams = figure.axes
    names = {text.get_text() for text in memory.get_legend().get_texts()}
    assert names == set(occupancy(run).held_bytes)
    rows = [label.get_text() for label in streams.get_yticklabels()]
    assert rows == list(dict.fromkeys(span.stream for span in run.runs[0].timeline.spans))
    paths = save(figure, tmp_path / "deep" / "run")
    assert [path.name for path in paths] == ["run.png", "run.pdf"]
    assert all(path.stat().st_size > 1000 for path in paths)


def test_a_deep_network_is_drawn_whole_and_near_its_peak(tmp_path: Path) -> None:
    figure = draw(chain_run("layrub_hybrid", [1000] * 1000))
    _, whole, detail = figure.axes
    assert not whole.collections
    assert whole.images
    assert sum(len(bars.get_paths()) for bars in detail.collections) < 100
    assert detail.get_xlim()[1] - detail.get_xlim()[0] < 0.1 * whole.get_xlim()[1]
    _, pdf = save(figure, tmp_path / "run")
    assert pdf.stat().st_size < 1_000_000


def test_a_step_in_micro_batches_is_drawn_and_traced_whole() -> None:
    once, run = (chain_run("layrub_hybrid", [1000] * 5, count) for count in (1, 3))
    memory, streams, *_ = draw(run).axes
    assert memory.get_xlim() == streams.get_xlim() == (0.0, pytest.approx(3 * once.step_time_s))
    dividers = [line.get_xdata()[0] for line in streams.lines if len(set(line.get_xdata())) == 1]
    assert dividers[:2] == pytest.approx([once.step_time_s, 2 * once.step_time_s])
    spans = [event for event in json.loads(trace_json(run))["traceEvents"] if event["ph"] == "X"]
    assert Counter(event["args"]["micro_batch"] for event in spans) == dict.fromkeys(
        range(3), len(once.runs[0].timeline.spans)
    )


@settings(deadline=None, max_examples=40)
@given(INTERVALS, st.integers(1, 30))
def test_busy_shares_add_up_to_the_spans(lengths: list[tuple[int, int]], columns: int) -> None:
    spans, now_s = [], 0
    for idle_s, busy_s in lengths:
        spans.append(Span(len(spans), "any", now_s + idle_s, now_s + idle_s + busy_s))
        now_s += idle_s + busy_s
    shares = busy_share(spans, np.linspace(0, now_s, columns + 1))
    assert shares.min() >= 0
    assert shares.max() <= 1
    assert shares.sum() * now_s / columns == pytest.approx(sum(busy_s for _, busy_s in lengths))


@pytest.mark.parametrize(
    ("width_inches", "expected"), [(1.0, ("layer1.conv2", 0)), (0.2, ("layer1.conv2", 90)), (0.05, ("", 0))]
)
def test_a_label_is_written_where_there_is_room(width_inches: float, expected: tuple[str, int]) -> None:
    assert fitting_label("layer1.conv2", width_inches, 0.8) == expected
    assert fitting_label("layer1.conv2", 0.5, 0.3) == ("conv2", 0)
