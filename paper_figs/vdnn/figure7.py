"""Figure 7: timeline of offload and prefetch, next to the baseline."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from paper_figs.marks import finish
from paper_figs.style import in_order, read
from paper_figs.vdnn.colors import COLORS

LAYERS = ("conv1_2", "pool1", "conv2_1", "conv2_2", "pool2")
DIRECTIONS = {"forward": "offload", "backward": "prefetch"}
NARROWEST_LABEL = 0.055
"""The least share of an axis that a bar with a name takes."""


def draw() -> Figure:
    table = read("vdnn", "figure7")
    named = table["metric"].str.extract(r"(?P<work>\w+)_(?P<edge>start|end):(?P<layer>.*)")
    spans = table.assign(**named).pivot_table(
        index=["system", "work", "layer"], columns="edge", values="simulated_value"
    )
    layers = in_order(named["layer"])
    figure, panels = plt.subplots(2, 1, figsize=(9, 4.2), layout="constrained")
    for axes, (direction, copy) in zip(panels, DIRECTIONS.items(), strict=True):
        for place, (system, work, label) in enumerate(
            (("vDNN_all(p)", copy, copy), ("vDNN_all(p)", direction, "vDNN_all(p)"), ("base(p)", direction, "base(p)"))
        ):
            bars = spans.loc[system, work].loc[layers]
            axes.barh(place, bars["end"] - bars["start"], 0.7, left=bars["start"], color=COLORS[label], ec="white")
        for bars in axes.containers:
            _name_bars(axes, bars)
        axes.set_yticks(range(3), [copy, "vDNN_all(p)", "base(p)"])
        axes.grid(visible=False, axis="y")
        axes.set_ylabel(direction)
    panels[-1].set_xlabel("ms since the step began")
    return finish(figure, "vDNN, Figure 7: copies of the inputs of VGG-16 (64), conv1_2 to pool2")


def _name_bars(axes: Axes, bars: BarContainer) -> None:
    """Write each layer's name into its bar, where there is room."""
    start, end = axes.get_xlim()
    widths = [bar.get_width() / (end - start) for bar in bars]
    names = [name if width > NARROWEST_LABEL else "" for name, width in zip(LAYERS, widths, strict=True)]
    axes.bar_label(bars, names, label_type="center", fontsize=7)
