"""A frontier's lines and bounds, and its picture."""

from pathlib import Path

import pytest
from matplotlib.text import Annotation

from membench.core.units import GIB, MIB
from membench.pictures.frontier import Frontier, FrontierPoint, draw, save


def point(
    strategy: str, peak_bytes: int, time_s: float, budget: int | None = None, bound_s: float | None = None
) -> FrontierPoint:
    return FrontierPoint(strategy, budget, peak_bytes, time_s, True, bound_s, None, 0.1)


EAGER = point("eager", 900 * MIB, 0.1)
POINTS = (
    point("joint", 300 * MIB, 0.12, 310 * MIB, 0.11),
    point("joint", 500 * MIB, 0.101, 500 * MIB, 0.1),
    point("dtr", 500 * MIB, 0.15, 500 * MIB),
    point("dtr", 500 * MIB, 0.15, 600 * MIB),
    point("network_wide", 2000 * MIB, 0.1),
    EAGER,
)


def test_lines_have_different_points_and_none_above_eager() -> None:
    lines = Frontier("net", EAGER, POINTS, GIB).lines()
    assert {name: len(points) for name, points in lines.items()} == {"joint": 2, "dtr": 1, "eager": 1}


def test_bounds_go_by_budget_up_to_eagers_peak() -> None:
    bounds = Frontier("net", EAGER, POINTS, GIB).bounds()
    assert bounds == [(310 * MIB, 0.11), (500 * MIB, 0.1), (900 * MIB, 0.1)]


def test_labels_name_each_strategy_and_do_not_overlap() -> None:
    crowd = tuple(point(f"method_{n}", (400 + 5 * n) * MIB, 0.13 + 0.002 * n) for n in range(6))
    figure = draw(Frontier("net", EAGER, (*POINTS, *crowd), GIB))
    figure.canvas.draw()
    labels = [each for each in figure.axes[0].texts if isinstance(each, Annotation)]
    names = {label.get_text() for label in labels}
    assert names == {"joint", "dtr", "eager", "lower bound of joint", *(each.strategy for each in crowd)}
    boxes = [label.get_window_extent() for label in labels]
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n] if a.height and b.height)


def test_the_line_named_ours_stands_out() -> None:
    lines = draw(Frontier("net", EAGER, POINTS, GIB, ours="dtr")).axes[0].lines
    widest = max(lines, key=lambda line: line.get_linewidth())
    assert list(widest.get_xdata()) == [500 * MIB]


@pytest.mark.parametrize("points", [(EAGER,), (EAGER, point("joint", 900 * MIB, 0.1))])
def test_a_frontier_of_one_point_is_drawn(points: tuple[FrontierPoint, ...], tmp_path: Path) -> None:
    frontier = Frontier("net", EAGER, points, 100 * MIB)
    save(draw(frontier), tmp_path / "a.png")
    save(draw(frontier), tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
