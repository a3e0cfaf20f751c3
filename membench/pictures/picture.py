"""A step as a picture: memory over the step by holder, and the activity of each stream.

The streams are drawn as in vDNN's Figure 7 and Layrub's Figure 8. A step of thousands of instructions is drawn as a
whole, in as many columns as are visible, and again near its peak, where single tasks are visible. Lines separate
micro-batches.
"""

from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter
from numpy.typing import NDArray

from membench.core.files import naming
from membench.core.graph.timeline import Span
from membench.core.units import GIB, MIB, format_bytes, format_seconds
from membench.pictures.observed_step import ObservedStep, PlacedSpan
from membench.pictures.occupancy import Occupancy, occupancy, thin

HOLDER_COLORS = {
    "weights": "#e0a458",
    "optimizer state": "#a16207",
    "inputs": "#f3dcb7",
    "framework": "#d6d3d1",
    "weight gradients": "#c47f2b",
    "activations": "#3b82c4",
    "encoded": "#be185d",
    "layers' internals": "#7a55b8",
    "gradients": "#8fc1e3",
    "workspace": "#9ca3af",
    "unused": "#e5e7eb",
}
ACTIVITY_COLORS = {
    "forward": "#3b82c4",
    "backward": "#123c69",
    "update": "#7a5195",
    "recomputed": "#d98b2b",
    "offload": "#d1495b",
    "prefetch": "#3f9b6c",
    "encode": "#be185d",
    "decode": "#0f766e",
    "allreduce": "#7a55b8",
}
OTHER_COLORS = ("#4d7c0f", "#155e75", "#9f1239")
"""Colors of holders and activities without an entry above."""

_DIVIDED_MICRO_BATCHES = 64
"""With more micro-batches, the lines between them would hide the picture."""
_COLUMNS = 1500
"""About the pixels of the picture's width: times within one column are indistinguishable, and drawn as their mean."""
_WIDTH_INCHES = 11.0
_TITLE_CHARACTERS = 110
"""Length of a line of the title; shorter than the picture's width, because some characters are wide."""
_DETAILED_TASKS = 14
"""Tasks of the compute stream in the detail, half before and half after the peak."""
_ROW_INCHES, _DETAILED_ROW_INCHES = 0.45, 1.05
_INCHES_PER_CHARACTER, _INCHES_PER_LINE = 0.057, 0.1
_STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "pdf.fonttype": 42,
}


def styled() -> AbstractContextManager[None]:
    """Draw in the style of all pictures of a step."""
    return mpl.rc_context(_STYLE)


def draw(step: ObservedStep) -> Figure:
    """Return the picture of a step."""
    held = occupancy(step)
    detail = _detail(held)
    rows = len(step.streams)
    heights = [3.2, rows * (_DETAILED_ROW_INCHES if detail is None else _ROW_INCHES)]
    heights += [] if detail is None else [rows * _DETAILED_ROW_INCHES]
    with styled():
        figure = Figure(figsize=(_WIDTH_INCHES, sum(heights) + 1.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes: Sequence[Axes] = figure.subplots(len(heights), 1, height_ratios=heights)
        title = f"{step.title}: peak {format_bytes(step.peak_bytes)}, step {format_seconds(step.step_time_s)}"
        figure.suptitle(fill(title, _TITLE_CHARACTERS), x=0.01, ha="left", weight="bold", fontsize=10.5)
        _draw_memory(axes[0], step, held)
        whole = (0.0, step.step_time_s)
        _draw_streams(axes[1], step, whole, labelled=detail is None)
        for start_s in step.starts_s[1:] if len(step.starts_s) <= _DIVIDED_MICRO_BATCHES else []:
            for above in axes[:2]:
                above.axvline(start_s, color="#6b7280", linewidth=0.8)
        axes[1].set_title("streams; paler where idle in between" if detail else "streams, by layer")
        _activity_legend(axes[1], step)
        if detail is not None:
            _draw_streams(axes[2], step, detail, labelled=True)
            axes[2].set_title("streams near the peak, by layer")
            for above in axes[:2]:
                for edge_s in detail:
                    above.axvline(edge_s, color="#111827", linewidth=0.7, linestyle=":")
        axes[-1].set_xlabel("time since the step began")
    return figure


def save(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Save a picture as ``.png`` and ``.pdf`` and return their paths."""
    png, pdf = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.pdf")
    path.parent.mkdir(parents=True, exist_ok=True)
    for picture in (png, pdf):
        with naming(picture):
            figure.savefig(picture, dpi=150)
    return png, pdf


def _detail(held: Occupancy) -> tuple[float, float] | None:
    """Return the detail's start and end, or None if the whole step is not much longer."""
    count = len(held.ends_s)
    if count <= 3 * _DETAILED_TASKS:
        return None
    last = min(held.peak + _DETAILED_TASKS // 2, count - 1)
    first = max(0, last - _DETAILED_TASKS)
    return float(held.ends_s[first]), float(held.ends_s[last])


def _draw_memory(axes: Axes, step: ObservedStep, full: Occupancy) -> None:
    held = thin(full, _COLUMNS)
    unit, unit_bytes = ("GB", GIB) if step.peak_bytes >= GIB else ("MB", MIB)
    times_s = [0.0, *held.ends_s]
    colors = _colors(HOLDER_COLORS, set(held.held_bytes))
    layers = [[*held.held_bytes[name] / unit_bytes, held.held_bytes[name][-1] / unit_bytes] for name in colors]
    axes.stackplot(times_s, layers, labels=list(colors), colors=list(colors.values()), step="post", linewidth=0)
    peak_s = full.ends_s[max(0, full.peak - 1) : full.peak + 1].mean()
    axes.plot(peak_s, step.peak_bytes / unit_bytes, marker="v", color="#111827", markersize=5, zorder=5)
    top_bytes = step.peak_bytes
    for name, limit_bytes, color in (
        ("device's memory", step.capacity_bytes, "#d1495b"),
        ("allocator's measured peak", step.measured_peak_bytes, "#111827"),
    ):
        if limit_bytes is not None and limit_bytes < 3 * step.peak_bytes:
            axes.axhline(limit_bytes / unit_bytes, color=color, linewidth=1, linestyle="--")
            axes.annotate(
                f"{name}, {format_bytes(limit_bytes)}", (1, limit_bytes / unit_bytes), color=color,
                xycoords=("axes fraction", "data"), xytext=(-2, 2), textcoords="offset points", ha="right",
                bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
            )  # fmt: skip
            top_bytes = max(top_bytes, limit_bytes)
    axes.set_ylim(0, 1.1 * top_bytes / unit_bytes)
    axes.set_xlim(0, step.step_time_s)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g} {unit}"))
    axes.xaxis.set_major_formatter(EngFormatter("s"))
    axes.grid(axis="y", color="#e5e7eb")
    one_for_all = step.measured_peak_bytes is not None and len(step.starts_s) > 1
    axes.set_title("device memory" + ("; the micro-batch that was timed stands for all" if one_for_all else ""))
    handles, labels = axes.get_legend_handles_labels()  # from the top of the stack down
    axes.legend(handles[::-1], labels[::-1], frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _draw_streams(axes: Axes, step: ObservedStep, window_s: tuple[float, float], *, labelled: bool) -> None:
    rows = {stream: row for row, stream in enumerate(step.streams)}
    colors = _activity_colors(step)
    for (activity, stream), placed in _bars(step, window_s).items():
        row, color, spans = rows[stream], colors[activity], [each.span for each in placed]
        if labelled:
            intervals = [(span.start_s, span.end_s - span.start_s) for span in spans]
            axes.broken_barh(intervals, (row - 0.4, 0.8), facecolor=color, edgecolor="white", linewidth=0.6)
            _write_labels(axes, placed, window_s, row)
        else:
            pixels = np.tile(to_rgba(color), (1, _COLUMNS, 1))
            pixels[0, :, 3] = busy_share(spans, np.linspace(*window_s, _COLUMNS + 1))
            axes.imshow(pixels, extent=(*window_s, row + 0.4, row - 0.4), aspect="auto", interpolation="nearest")
    axes.set_xlim(*window_s)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.xaxis.set_major_formatter(EngFormatter("s"))
    axes.tick_params("y", length=0)


def _activity_legend(axes: Axes, step: ObservedStep) -> None:
    for activity, color in _activity_colors(step).items():
        axes.plot([], [], color=color, linewidth=6, label=activity)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.05))


def _bars(step: ObservedStep, window_s: tuple[float, float]) -> dict[tuple[str, str], list[PlacedSpan]]:
    """Return the spans within a time window by activity and stream."""
    bars: dict[tuple[str, str], list[PlacedSpan]] = {}
    for placed in step.spans():
        span = placed.span
        if span.end_s > window_s[0] and span.start_s < window_s[1]:
            bars.setdefault((placed.run.activity(span), span.stream), []).append(placed)
    return bars


def _write_labels(axes: Axes, bars: Sequence[PlacedSpan], window_s: tuple[float, float], row: int) -> None:
    """Write the layer into each bar that has room for it."""
    inches_per_s = 0.75 * _WIDTH_INCHES / (window_s[1] - window_s[0])
    for run, _, span in bars:
        start_s, end_s = max(span.start_s, window_s[0]), min(span.end_s, window_s[1])
        label = run.label(span)
        text, rotation = fitting_label(label, (end_s - start_s) * inches_per_s, 0.8 * _DETAILED_ROW_INCHES)
        axes.text(
            (start_s + end_s) / 2, row, text, rotation=rotation,
            ha="center", va="center", fontsize=6.5, color="white",
        )  # fmt: skip


def fitting_label(label: str, width_inches: float, height_inches: float) -> tuple[str, int]:
    """Return the part of a label that fits a bar, and its rotation: all of it, vertical in a narrow bar, or its end."""
    for text in (label, label.rpartition(".")[2]):
        length_inches = len(text) * _INCHES_PER_CHARACTER
        if length_inches < width_inches:
            return text, 0
        if length_inches < height_inches and width_inches > _INCHES_PER_LINE:
            return text, 90
    return "", 0


def busy_share(spans: Sequence[Span], edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fraction of the time between each two edges that lies within one of a stream's spans."""
    spans = sorted(spans, key=lambda span: span.start_s)
    times_s = np.array([time_s for span in spans for time_s in (span.start_s, span.end_s)])
    lengths_s = np.array([span.end_s - span.start_s for span in spans])
    busy_s = np.cumsum(np.stack([np.zeros_like(lengths_s), lengths_s], axis=1).ravel())
    until_edges_s = np.interp(edges_s, times_s, busy_s)
    return np.clip(np.diff(until_edges_s) / np.diff(edges_s), 0.0, 1.0)


def _activity_colors(step: ObservedStep) -> dict[str, str]:
    """Return a color for each activity of a step."""
    return _colors(ACTIVITY_COLORS, {run.activity(span) for run in step.runs for span in run.timeline.spans})


def _colors(known: Mapping[str, str], names: Set[str]) -> dict[str, str]:
    """Return a color for each name, known names first; the others take `OTHER_COLORS` in turn."""
    unknown = {name: OTHER_COLORS[i % len(OTHER_COLORS)] for i, name in enumerate(sorted(names - known.keys()))}
    return {name: color for name, color in known.items() if name in names} | unknown
