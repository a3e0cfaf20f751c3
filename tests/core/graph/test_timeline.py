import pytest

from membench.core.graph.timeline import Span, Timeline

COPIES = {1, 2}


@pytest.mark.parametrize(
    ("spans", "exposed_s"),
    [
        ([(0, 0.0, 4.0), (1, 1.0, 3.0)], 0.0),  # all of it in parallel with a task
        ([(0, 0.0, 2.0), (1, 1.0, 3.0)], 1.0),
        ([(0, 0.0, 1.0), (1, 2.0, 5.0), (3, 4.0, 6.0)], 2.0),
        ([(1, 0.0, 2.0), (2, 1.0, 3.0)], 3.0),  # two copies at once count once
        ([(0, 0.0, 1.0)], 0.0),
    ],
)
def test_time_in_which_only_copies_are_under_way(spans: list[tuple[int, float, float]], exposed_s: float) -> None:
    timeline = Timeline(tuple(Span(i, "any", start, end) for i, start, end in spans), 6.0)
    assert timeline.exposed_s(COPIES) == pytest.approx(exposed_s)


def test_time_in_which_an_instruction_is_under_way_counts_once() -> None:
    spans = [(0, 0.0, 9.0), (1, 4.0, 6.0), (2, 1.0, 3.0), (1, 2.0, 3.5), (2, 5.0, 5.5)]
    timeline = Timeline(tuple(Span(i, "any", start, end) for i, start, end in spans), 9.0)
    assert timeline.under_way_s(COPIES) == pytest.approx(2.5 + 2.0)
