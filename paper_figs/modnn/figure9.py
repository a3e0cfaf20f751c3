"""Figure 9: memory of the ideal case, and moDNN's lower bounds."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark, mark_rows, numbers, stated
from paper_figs.modnn.colors import COLORS
from paper_figs.style import REFERENCE_LINE, bar_groups, in_order, log_axis, read

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
    largest = numbers(table[table["metric"] == "memory_requirement"], "modnn").nlargest(1, "paper_value")
    least = stated(table, "modnn", model="VGG-101", system="moDNN lower bound (sub-batch 1, weights resident)")
    mark_rows(axes, places, largest)
    mark(axes, places.loc["VGG-101", "lower bound"], least)
    axes.axhline(CAPACITY_GB, **REFERENCE_LINE, label="memory of a K40")
    log_axis(axes, [0.01, 0.1, 1, 10, 100])
    axes.set_ylabel("memory (GB, log scale)")
    return finish(figure, "moDNN, Figure 9: memory of the ideal case, and the least that will do")
