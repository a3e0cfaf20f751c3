"""Figure 10: memory for activations and gradients of wide models."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.marks import finish
from paper_figs.style import grouped_bars, log_axis, read

TICKS = [100, 300, 1000, 3000, 10_000, 30_000]


def draw() -> Figure:
    table = read("layrub", "figure10")
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    grouped_bars(axes, table[table["item"] == "Figure 10"], COLORS, unit="MB, log scale")
    log_axis(axes, TICKS)
    axes.margins(y=0.12)
    return finish(figure, "Layrub, Figure 10: wide models (CIFAR-10, batch 128)")
