"""Figure 8: a convolution's gradients on three streams, without and with barriers, and on one stream."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.marks import finish
from paper_figs.style import in_order, read

PANELS = {
    "Caffe with gradient streams": (
        "Caffe, three streams, no barriers: nothing is reused (Layrub's reuse without barriers would be refused)"
    ),
    "Layrub-intra with gradient streams": (
        "Layrub-intra, three streams with barriers: the data gradient takes the activation's space"
    ),
    "Layrub-intra": "Layrub-intra, one stream",
}
LANES = ("data", "weight", "bias")


def draw() -> Figure:
    table = read("layrub", "figure8")
    named = table["metric"].str.extract(r"(?P<gradient>\w+)_gradient_(?P<edge>start|end):(?P<layer>.*)")
    spans = table.assign(**named).pivot_table(
        index=["system", "gradient", "layer"], columns="edge", values="simulated_value"
    )
    figure, panels = plt.subplots(3, 1, figsize=(9, 4.8), sharex=True, layout="constrained")
    for axes, system in zip(panels, in_order(table["system"]), strict=True):
        _draw_streams(axes, spans.loc[system])
        axes.set_title(PANELS[system])
    panels[-1].set_xlabel("ms since the first of these gradients began")
    return finish(figure, "Layrub, Figure 8: gradients of CIFAR10-quick's convolutions, with and without barriers")


def _draw_streams(axes: Axes, spans: pd.DataFrame) -> None:
    """Draw a lane for each of the gradients, with a bar for each layer."""
    since = spans["start"].min()
    for place, gradient in enumerate(LANES):
        bars = spans.loc[gradient]
        drawn = axes.barh(
            [place] * len(bars),
            bars["end"] - bars["start"],
            0.7,
            left=bars["start"] - since,
            color=COLORS[f"{gradient} gradient"],
        )
        inside = gradient != "bias"  # whose bars are too narrow for a label
        axes.bar_label(
            drawn, list(bars.index), fontsize=7, label_type="center" if inside else "edge", padding=0 if inside else 2,
            color="white" if inside else None,
        )  # fmt: skip
    axes.set_yticks(range(len(LANES)), [f"{gradient} gradient" for gradient in LANES])
    axes.grid(visible=False, axis="y")
