"""How close a paper is met: the tables on its page."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from membench.lab.papers.judging.closeness import Closeness, read_closeness, together
from membench.lab.papers.reading.experiment import Order, Selection
from membench.lab.papers.reading.quantities import Result
from tests.helpers.lab.papers import PAPER, ROW, numbers_of

ORDERED = replace(PAPER, orders=(Order("memory", Selection({}), across=(("system",),), best="lower"),))


def _closeness(result: Callable[..., Result]) -> Closeness:
    values = ((100.0, 110.0), (200.0, 90.0), (300.0, 330.0))
    rows = (replace(ROW, system=f"method {papers:g}", value=papers, line=int(papers)) for papers, _ in values)
    return Closeness.of(
        numbers_of(ORDERED, [result(ours, row=row) for row, (_, ours) in zip(rows, values, strict=True)])
    )


def test_tables_have_what_is_compared_and_all_together(result: Callable[..., Result]) -> None:
    found = _closeness(result)
    assert found.order.rows == [(name, "2 of 3 (67 %)", "1", "", "0.33", "0 of 1") for name in ("methods", "all")]
    assert found.distance.rows == [("memory", "3", "10.0 %", "46.0 %", "3", "10.0 %", "46.0 %")]
    assert found.glance[:5] == ("2 of 3 (67 %)", "0.33", "2 of 3 (67 %)", "0 of 1", "10.0 % (46.0 %)")
    assert found.margins.rows == [("10 % and more", "2 of 3 (67 %)", "21 to 94 %", "too few")]
    assert found.two_counts == "2 of 3"
    other = [{**line, "agree_at_papers_largest": "false"} for line in found.rankings]
    assert replace(found, rankings=other).two_counts == "2 of 3 (0 at the paper's largest batch)"
    assert [row[2:] for row in found.others.rows] == [
        ("method 100 (100 MB) < method 200 (200 MB)", "110 MB > 90 MB"),
        ("best: method 100 (100 MB)", "best: method 200 (90 MB)"),
    ]


def test_all_papers_are_counted_together(result: Callable[..., Result]) -> None:
    assert together([_closeness(result), _closeness(result)]).pairs.count == "4 of 6"


def test_a_paper_without_orders_has_empty_tables(tmp_path: Path) -> None:
    found = read_closeness(tmp_path)
    assert found.order.rows == found.distance.rows == found.others.rows == []
    assert found.glance[:4] == ("", "", "", "")
