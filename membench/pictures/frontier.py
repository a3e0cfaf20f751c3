"""A frontier: the peak memory and step time of several strategies under several budgets, as a picture."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from membench.core.files import naming
from membench.core.result import Result
from membench.core.units import GIB, MIB, format_seconds

OURS = "joint"
"""The strategy that states a lower bound."""
_OURS_COLOR, _BOUND_COLOR, _POINT_COLOR = "#0072b2", "#374151", "#5b6472"
_LINE_COLORS = ("#d55e00", "#009e73", "#cc79a7", "#a16207", "#7a55b8", "#155e75")
"""Of the strategies with several points, different to those who do not see red or green (Okabe and Ito, 2008)."""
_SIZE_IN = (6.8, 4.4)
_MARGINS = {"left": 0.125, "right": 0.985, "bottom": 0.115, "top": 0.9}
_FONT_POINTS = 8.0
_SLOWEST = 4.0
"""Multiple of the fastest step's time up to which the picture reaches."""
_STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
"""Numbers on the logarithmic axis, times powers of ten."""
_STYLE: dict[Any, Any] = {
    "font.size": _FONT_POINTS + 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class FrontierPoint:
    """A step by one strategy within one budget, simulated.

    Attributes:
        budget_bytes: None: the strategy was free to hold what it likes.
        step_time_s: on a device that has the memory, if this one has not.
        fits: whether the device has the memory.
        lower_bound_s: on the time of any schedule within the budget; None: the strategy does not state one.
        gap: by what share the step exceeds it.
        planning_time_s: seconds to plan, check and simulate the step on the machine that did.
    """

    strategy: str
    budget_bytes: int | None
    peak_bytes: int
    step_time_s: float
    fits: bool
    lower_bound_s: float | None
    gap: float | None
    planning_time_s: float


@dataclass(frozen=True)
class Frontier(Result, text="membench.pictures.frontier_text", picture="membench.pictures.frontier"):
    """The points of one network on one device.

    Attributes:
        title: network, batch size and device.
        eager: the point of eager execution.
        points: points of all strategies, in their order; those of one strategy by rising budget.
        capacity_bytes: memory of the device.
        ours: the strategy whose line stands out.
    """

    title: str
    eager: FrontierPoint
    points: tuple[FrontierPoint, ...]
    capacity_bytes: int
    ours: str = OURS

    def lines(self) -> dict[str, list[FrontierPoint]]:
        """Return each strategy's different points by rising peak, without those that need more memory than eager."""
        found: defaultdict[str, dict[tuple[int, float], FrontierPoint]] = defaultdict(dict)
        for point in self.points:
            if point.peak_bytes <= self.eager.peak_bytes:
                found[point.strategy].setdefault((point.peak_bytes, point.step_time_s), point)
        return {strategy: [own[key] for key in sorted(own)] for strategy, own in found.items()}

    def bounds(self) -> list[tuple[int, float]]:
        """Return the lower bounds on the step time by rising budget, the last of them at eager's peak."""
        stated = {
            point.budget_bytes or point.peak_bytes: point.lower_bound_s
            for point in self.points
            if point.lower_bound_s is not None
        }
        found = sorted(stated.items())
        return [*found, (self.eager.peak_bytes, found[-1][1])] if found else []


def draw(frontier: Frontier) -> Figure:
    """Return the picture of a frontier: peak memory across, step time upwards on a logarithmic axis."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE_IN)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        figure.subplots_adjust(**_MARGINS)
        figure.suptitle(frontier.title, x=0.015, y=0.975, ha="left", weight="bold", fontsize=10)
        _set_axes(axes, frontier)
        _draw_bound(axes, frontier)
        labels = list(_draw_lines(axes, frontier))
        _place(axes, labels, frontier)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Save a picture as ``.png``, the same bytes for the same points."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        figure.savefig(path, dpi=150, metadata={"Software": None})


@dataclass(frozen=True)
class _Label:
    x: float
    y: float
    text: str
    color: str
    is_ours: bool = False

    def font(self) -> dict[str, Any]:
        return {"fontsize": _FONT_POINTS + self.is_ours, "weight": "bold" if self.is_ours else "normal"}


def _set_axes(axes: Axes, frontier: Frontier) -> None:
    shown = [point for line in frontier.lines().values() for point in line]
    unit, name = (GIB, "GB") if frontier.eager.peak_bytes >= 4 * GIB else (MIB, "MB")
    fastest_s = min([point.step_time_s for point in shown] + [bound_s for _, bound_s in frontier.bounds()])
    slowest_s = min(max(point.step_time_s for point in shown), _SLOWEST * fastest_s)
    least = min(point.peak_bytes for point in shown)
    width = max(frontier.eager.peak_bytes - least, MIB)
    axes.set_xlim(least - 0.07 * width, frontier.eager.peak_bytes + 0.08 * width)
    axes.set_yscale("log")
    axes.set_ylim(fastest_s / 1.12, slowest_s * 1.06)
    axes.yaxis.set_major_locator(FixedLocator(_numbers(fastest_s / 1.12, slowest_s * 1.06)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:,.4g}"))
    axes.xaxis.set_major_locator(mpl.ticker.MultipleLocator(_round_step(width / 6 / unit) * unit))
    axes.set_xlabel(f"peak memory of the step, {name}")
    axes.set_ylabel("step time")
    axes.grid(color="#e5e7eb", linewidth=0.7)


def _numbers(low: float, high: float) -> list[float]:
    """Return numbers for a logarithmic axis, at most about eight."""
    found = [step * 10.0**power for power in range(-7, 5) for step in _STEPS if low <= step * 10.0**power <= high]
    if len(found) >= 3:
        return found
    step = _round_step((high - low) / 5)
    return [step * number for number in range(int(low / step) + 1, int(high / step) + 1)]


def _round_step(value: float) -> float:
    """Return the least of 1, 2, 2.5 and 5 times a power of ten that is not below a value."""
    return next(step * 10.0**power for power in range(-9, 12) for step in (1, 2, 2.5, 5) if step * 10.0**power >= value)


def _draw_bound(axes: Axes, frontier: Frontier) -> None:
    if bounds := frontier.bounds():
        sizes, times_s = zip(*bounds, strict=True)
        floor_s = axes.get_ylim()[0]
        axes.fill_between(sizes, floor_s, times_s, color="#f3f4f6", linewidth=0, zorder=0)
        axes.plot(sizes, times_s, color=_BOUND_COLOR, linewidth=0.9, linestyle="--", zorder=2)
    if frontier.capacity_bytes < axes.get_xlim()[1]:
        axes.axvline(frontier.capacity_bytes, color=_BOUND_COLOR, linewidth=0.8, linestyle=":")


def _draw_lines(axes: Axes, frontier: Frontier) -> Iterator[_Label]:
    """Draw each strategy's points, and yield its label at the point that stands for it."""
    colors = iter(_LINE_COLORS)
    top_s = axes.get_ylim()[1]
    for strategy, points in sorted(frontier.lines().items(), key=lambda line: line[0] != frontier.ours):
        shown = [point for point in points if point.step_time_s <= top_s]
        if not shown:
            continue
        is_ours, is_line = strategy == frontier.ours, len(points) > 1
        color = _OURS_COLOR if is_ours else next(colors, _POINT_COLOR) if is_line else _POINT_COLOR
        axes.plot(
            [point.peak_bytes for point in points], [point.step_time_s for point in points],
            color=color, linewidth=2.0 if is_ours else 1.0, marker="o", markersize=4.5 if is_ours else 3.6,
            markeredgecolor="white", markeredgewidth=0.5, zorder=4 if is_ours else 3,
        )  # fmt: skip
        named = shown[0] if is_ours else shown[len(shown) // 3]
        yield _Label(named.peak_bytes, named.step_time_s, strategy, color, is_ours)
    if bounds := frontier.bounds():
        size, bound_s = bounds[len(bounds) // 3]
        yield _Label(size, bound_s, f"lower bound of {OURS}", _BOUND_COLOR)
    if frontier.capacity_bytes < axes.get_xlim()[1]:
        yield _Label(frontier.capacity_bytes, top_s / 1.03, "the device's memory", _BOUND_COLOR)


def _place(axes: Axes, labels: Sequence[_Label], frontier: Frontier) -> None:
    """Write each label next to its point, where it covers neither a point nor another label."""
    frame = axes.get_window_extent()
    points_per_pixel = 72 / axes.figure.dpi
    taken = [
        (x - 3, x + 3, y - 3, y + 3)
        for line in frontier.lines().values()
        for x, y in _along([_place_of(axes, point.peak_bytes, point.step_time_s, points_per_pixel) for point in line])
    ]
    limits = [edge * points_per_pixel for edge in (frame.x0, frame.x1, frame.y0, frame.y1)]
    for label in labels:
        x, y = _place_of(axes, label.x, label.y, points_per_pixel)
        width, height = _size_of(axes, label, points_per_pixel)
        boxes = [
            (left, left + width, low, low + height)
            for distance in (4, 12, 22, 34, 48)
            for left, low in (
                (x + distance, y - height / 2), (x - width - distance, y - height / 2),
                (x - width / 2, y + distance), (x - width / 2, y - height - distance),
                (x + distance, y + distance), (x - width - distance, y - height - distance),
                (x + distance, y - height - distance), (x - width - distance, y + distance),
            )
        ]  # fmt: skip
        free = (box for box in boxes if _is_inside(box, limits) and not any(_overlap(box, other) for other in taken))
        box = next(free, boxes[0])
        taken.append(box)
        far = max(abs(box[0] + width / 2 - x) - width / 2, abs(box[2] + height / 2 - y) - height / 2) > 14
        axes.annotate(
            label.text, (label.x, label.y), xytext=(box[0] - x, box[2] - y), textcoords="offset points",
            color=label.color, ha="left", va="bottom", zorder=6, annotation_clip=False, **label.font(),
            arrowprops={"arrowstyle": "-", "color": "#9ca3af", "linewidth": 0.5} if far else None,
        )  # fmt: skip


def _size_of(axes: Axes, label: _Label, points_per_pixel: float) -> tuple[float, float]:
    """Return a label's width and height in points."""
    written = axes.text(0, 0, label.text, **label.font())
    extent = written.get_window_extent()
    written.remove()
    return extent.width * points_per_pixel, extent.height * points_per_pixel


def _along(places: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield places and others between them on straight lines, close enough that no label fits in between."""
    yield from places[:1]
    for (x, y), (next_x, next_y) in pairwise(places):
        parts = max(1, round(hypot(next_x - x, next_y - y) / _FONT_POINTS))
        for part in range(1, parts + 1):
            yield x + (next_x - x) * part / parts, y + (next_y - y) * part / parts


def _place_of(axes: Axes, x: float, y: float, points_per_pixel: float) -> tuple[float, float]:
    across, up = axes.transData.transform((x, y)) * points_per_pixel
    return float(across), float(up)


def _overlap(box: Sequence[float], other: Sequence[float]) -> bool:
    return box[0] < other[1] and other[0] < box[1] and box[2] < other[3] and other[2] < box[3]


def _is_inside(box: Sequence[float], frame: Sequence[float]) -> bool:
    return frame[0] <= box[0] and box[1] <= frame[1] + 4 and frame[2] <= box[2] and box[3] <= frame[3] + 6
