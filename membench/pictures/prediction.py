"""A prediction as a picture: what its memory consists of, next to what the device has."""

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from membench.core.units import GIB, MIB, format_bytes, format_seconds
from membench.pictures.picture import HOLDER_COLORS, styled
from membench.steps.predicted.prediction import Prediction

_NEXT_COLORS = {"fragmentation": "#cbd5e1", "besides the step": "#94a3b8"}
_SIZE_IN = (8.0, 2.6)


def draw(prediction: Prediction) -> Figure:
    """Return the picture: a bar of the parts at the peak, what the allocator and the context add, and its interval."""
    with styled():
        figure = Figure(figsize=_SIZE_IN, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        fits = "fits" if prediction.fits else "does not fit"
        title = f"{prediction.model or 'step'}, batch {prediction.batch_size}: {fits} {prediction.device}"
        figure.suptitle(
            f"{title}, step {format_seconds(prediction.step_time_s)} (predicted)", x=0.01, ha="left", weight="bold"
        )
        unit, name = (GIB, "GB") if max(prediction.shown_bytes, prediction.capacity_bytes) >= GIB else (MIB, "MB")
        _draw_parts(axes, prediction, unit)
        low, high = prediction.shown_interval_bytes
        axes.plot([low / unit, high / unit], [0.52, 0.52], color="#111827", linewidth=1.2, marker="|", markersize=7)
        axes.axvline(prediction.capacity_bytes / unit, color="#d1495b", linewidth=1.2, linestyle="--")
        axes.set_yticks([])
        axes.set_ylim(-0.45, 0.75)
        axes.set_xlim(0, 1.04 * max(prediction.capacity_bytes, high) / unit)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g} {name}"))
        axes.set_title(
            f"device memory; dashed: {format_bytes(prediction.capacity_bytes)} of the device; line: 90 % of published "
            "steps of this kind"
        )
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4)
    return figure


def colored_parts(prediction: Prediction) -> list[tuple[str, int, str]]:
    """Return the names, sizes in bytes and colours of what the memory in use consists of."""
    known = {name: prediction.parts_bytes[name] for name in HOLDER_COLORS if name in prediction.parts_bytes}
    parts = {**known, **prediction.parts_bytes}
    parts["fragmentation"] = prediction.reserved_bytes - prediction.allocated_bytes
    parts["besides the step"] = prediction.shown_bytes - prediction.reserved_bytes
    colors = HOLDER_COLORS | _NEXT_COLORS
    return [(name, size, colors.get(name, "#4d7c0f")) for name, size in parts.items() if size > 0]


def _draw_parts(axes: Axes, prediction: Prediction, unit: int) -> None:
    left = 0.0
    for name, size_bytes, color in colored_parts(prediction):
        label = f"{name} {format_bytes(size_bytes)}"
        axes.barh(0, size_bytes / unit, left=left, height=0.7, color=color, label=label)
        left += size_bytes / unit
