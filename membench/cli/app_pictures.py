"""Pictures of `membench app`, which a reader can click on."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bokeh.models import ColumnDataSource, Span
from bokeh.plotting import figure

from membench.core.units import GIB, format_bytes
from membench.pictures.prediction import colored_parts

if TYPE_CHECKING:
    from membench.advice.device.advice import Advice, AdvisedPlan
    from membench.steps.predicted.prediction import Prediction

_LIMIT_COLOR, _POINT_COLOR, _BEST_COLOR = "#d1495b", "#6b7280", "#4f6bed"

_SHOWN = {"toolbar_location": None, "sizing_mode": "stretch_width"}


def memory(prediction: "Prediction") -> figure:
    """Return the memory in use by category, one above the other, next to what the device has."""
    parts = colored_parts(prediction)
    names = [f"{name} {format_bytes(size)}" for name, size, _ in parts]
    plot = figure(y_range=names[::-1], height=60 + 28 * len(names), tools="", **_SHOWN)
    left = 0.0
    for name, (_, size_bytes, color) in zip(names, parts, strict=True):
        plot.hbar(y=[name], left=left, right=left + size_bytes / GIB, height=0.8, color=color)
        left += size_bytes / GIB
    plot.add_layout(_limit(prediction.capacity_bytes))
    plot.x_range.start, plot.x_range.end = 0, 1.05 * max(left, prediction.capacity_bytes / GIB)
    plot.xaxis.axis_label = f"GB in use; dashed: {format_bytes(prediction.capacity_bytes)} of the device"
    return plot


def frontier(advice: "Advice", plans: "Sequence[AdvisedPlan]", choose: "Callable[[AdvisedPlan], None]") -> figure:
    """Return the plans by peak memory and step time, those connected that no other one beats in both.

    Args:
        choose: gets the plan that a reader clicks on.
    """
    source = ColumnDataSource(
        {
            "name": [plan.name for plan in plans],
            "peak": [plan.peak_bytes / GIB for plan in plans],
            "time": [plan.step_time_s * 1e3 for plan in plans],
        }
    )
    plot = figure(height=320, tools="tap,hover", tooltips="@name: @peak{0.0} GB, @time{0,0} ms", **_SHOWN)
    best = unbeaten(plans)
    plot.line([plan.peak_bytes / GIB for plan in best], [plan.step_time_s * 1e3 for plan in best], color=_BEST_COLOR)
    plot.scatter("peak", "time", source=source, size=14, color=_POINT_COLOR, selection_color=_BEST_COLOR)
    plot.add_layout(_limit(advice.capacity_bytes))
    plot.xaxis.axis_label, plot.yaxis.axis_label = "GB that the step's tensors hold", "ms per step"

    def chosen(_name: str, _old: list[int], places: list[int]) -> None:
        if places:
            choose(plans[places[0]])

    source.selected.on_change("indices", chosen)
    return plot


def unbeaten(plans: "Sequence[AdvisedPlan]") -> "list[AdvisedPlan]":
    """Return the plans that are faster than all with as little memory, the smallest first."""
    found: list[AdvisedPlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.peak_bytes, plan.step_time_s)):
        if not found or plan.step_time_s < found[-1].step_time_s:
            found.append(plan)
    return found


def _limit(capacity_bytes: int) -> Span:
    return Span(dimension="height", location=capacity_bytes / GIB, line_color=_LIMIT_COLOR, line_dash="dashed")
