"""Figure 14: time of a step under Layrub and under memonger, each normalised to its own baseline."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import PAPER_MARKER, REFERENCE_LINE, bar_groups, by_system, read


def draw() -> Figure:
    shown = read("layrub", "figure14")
    values = by_system(shown[shown["item"] == "Figure 14"])
    overheads = read("layrub", "table5")
    overheads = overheads[overheads["metric"] == "time_overhead_vs_own_baseline"]
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    places = bar_groups(axes, values)
    for row in overheads[overheads["paper_value"].notna()].itertuples():
        if row.model in values.index:
            place = places.loc[row.model, row.system]
            axes.scatter([place], [1 + row.paper_value / 100], **PAPER_MARKER)
    axes.scatter([], [], **PAPER_MARKER, label="1 + overhead stated in the paper's Table 5")
    axes.axhline(1, **REFERENCE_LINE)
    axes.set_ylim(0.9, None)
    axes.set_ylabel("step time (own baseline = 1)")
    figure.legend(frameon=False, ncols=3, loc="outside lower center")
    axes.set_title("Layrub, Figure 14: cost of migration and of recomputation, K40M", weight="bold")
    return figure
