"""Figure 11: memory for activations and gradients of well-known models."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.marks import finish
from paper_figs.style import grouped_bars, log_axis, read, with_batch_sizes

TICKS = [1, 3, 10, 30, 100, 300, 1000, 3000, 10_000]


def draw() -> Figure:
    table = read("layrub", "figure11")
    shown = table[table["item"] == "Figure 11"]
    figure, axes = plt.subplots(figsize=(9.5, 4), layout="constrained")
    grouped_bars(axes, shown, COLORS, unit="MB, log scale")
    with_batch_sizes(axes, shown)
    log_axis(axes, TICKS)
    axes.margins(y=0.12)
    axes.tick_params("x", rotation=20)
    return finish(figure, "Layrub, Figure 11: well-known models (usual batch sizes; LSTMs as PyTorch keeps them)")
