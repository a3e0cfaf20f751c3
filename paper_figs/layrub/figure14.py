"""Figure 14: by how much a step takes longer under Layrub and under memonger, each than its own baseline."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.style import PAPER_MARKER, bar_groups, by_system, label_bars, read


def draw() -> Figure:
    shown = read("layrub", "figure14")
    values = 100 * (by_system(shown[shown["item"] == "Figure 14"]) - 1)
    overheads = read("layrub", "table5")
    overheads = overheads[overheads["metric"] == "time_overhead_vs_own_baseline"]
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    label_bars(axes, places, values, lambda percent: f"{percent:.1f}" if percent < 2 else "")
    for row in overheads[overheads["paper_value"].notna()].itertuples():
        if row.model in values.index:
            place = places.loc[row.model, row.system]
            axes.scatter([place], [row.paper_value], **PAPER_MARKER)
    axes.scatter([], [], **PAPER_MARKER, label="stated in the paper's Table 5")
    axes.set_ylabel("time over own baseline (%)")
    figure.legend(frameon=False, ncols=3, loc="outside lower center")
    axes.set_title("Layrub, Figure 14: cost of migration and of recomputation, K40M", weight="bold")
    return figure
