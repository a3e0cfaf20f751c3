"""Figure 11: what is offloaded and prefetched within 12 GB."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.modnn.colors import COLORS
from paper_figs.style import bar_groups, by_system, label_bars, read


def draw() -> Figure:
    table = read("modnn", "figure11")
    values = by_system(table[table["item"] == "Figure 11"])
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    label_bars(axes, places, values, lambda size_gb: f"{size_gb:.2f}" if 0 < size_gb < 1 else f"{size_gb:.0f}")
    axes.set_ylabel("copied in a step, both ways (GB)")
    figure.legend(frameon=False, ncols=2, loc="outside lower center")
    axes.set_title("moDNN, Figure 11: data transferred, K40 with 12 GB", weight="bold")
    return figure
