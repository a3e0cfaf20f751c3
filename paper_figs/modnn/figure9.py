"""Figure 9: memory of the ideal case, and moDNN's lower bounds."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.modnn.colors import COLORS
from paper_figs.style import PAPER_LABEL, PAPER_MARKER, REFERENCE_LINE, bar_groups, in_order, log_axis, read, stated

CAPACITY_GB = 12
SERIES = {
    "memory_requirement": "ideal case",
    "lower_bound": "lower bound",
    "lower_bound_weights_offloaded": "lower bound, weights offloaded",
}


def draw() -> Figure:
    table = read("modnn", "figure9")
    shown = table[table["item"] == "Figure 9"]
    values = shown.pivot_table(index="model", columns="metric", values="simulated_value", sort=False)
    values = values.reindex(index=in_order(shown["model"]))[list(SERIES)].rename(columns=SERIES)
    figure, axes = plt.subplots(figsize=(8.4, 3.8), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    ideal = table[(table["system"] == "ideal case") & (table["item"] != "Figure 9")]
    largest = ideal["paper_value"].max()
    least = stated(table, model="VGG-101", system="moDNN lower bound (sub-batch 1, weights resident)")
    axes.scatter([places.loc["VGG-101", "ideal case"]], [largest], **PAPER_MARKER, label=PAPER_LABEL)
    axes.scatter([places.loc["VGG-101", "lower bound"]], [least], **PAPER_MARKER)
    axes.axhline(CAPACITY_GB, **REFERENCE_LINE, label="memory of a K40")
    log_axis(axes, [0.01, 0.1, 1, 10, 100])
    axes.set_ylabel("memory (GB, log scale)")
    figure.legend(frameon=False, ncols=3, loc="outside lower center")
    axes.set_title("moDNN, Figure 9: memory of the ideal case, and the least that will do", weight="bold")
    return figure
