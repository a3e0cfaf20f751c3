"""Figure 9: memory for activations and gradients of deep models."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.marks import finish, mark_rows, numbers
from paper_figs.style import grouped_bars, log_axis, read

TICKS = [100, 300, 1000, 3000, 10_000, 30_000, 100_000]


def draw() -> Figure:
    table = read("layrub", "figure9")
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    places = grouped_bars(axes, table[table["item"] == "Figure 9"], COLORS, unit="MB, log scale")
    papers = numbers(table[table["metric"] == "gpu_memory_allocation"], "layrub")
    mark_rows(axes, places, papers.assign(system="Layrub-hybrid"))
    log_axis(axes, TICKS)
    axes.margins(y=0.12)
    return finish(figure, "Layrub, Figure 9: deep models (ImageNet, batch 32)")
