"""Figure 9: memory for activations and gradients of deep models."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.style import PAPER_LABEL, PAPER_MARKER, grouped_bars, in_order, log_axis, read

TICKS = [100, 300, 1000, 3000, 10_000, 30_000, 100_000]


def draw() -> Figure:
    table = read("layrub", "figure9")
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    grouped_bars(axes, table[table["item"] == "Figure 9"], COLORS, unit="MB, log scale")
    models = in_order(table[table["item"] == "Figure 9"]["model"])
    stated = table[(table["metric"] == "gpu_memory_allocation") & table["paper_value"].notna()]
    for model, value in zip(stated["model"], stated["paper_value"], strict=True):
        if model in models:  # of the hybrid strategy: beside a model's last bar
            axes.scatter([models.index(model) + 0.45], [value], **PAPER_MARKER)
    axes.scatter([], [], **PAPER_MARKER, label=PAPER_LABEL)
    log_axis(axes, TICKS)
    axes.margins(y=0.12)
    figure.legend(frameon=False, ncols=5, loc="outside lower center")
    axes.set_title("Layrub, Figure 9: deep models (ImageNet, batch 32)", weight="bold")
    return figure
