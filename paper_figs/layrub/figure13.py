"""Figure 13: performance of each system over its own baseline."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.style import PAPER_LABEL, PAPER_MARKER, REFERENCE_LINE, bar_groups, by_system, read


def draw() -> Figure:
    table = read("layrub", "figure13")
    values = by_system(table[table["item"] == "Figure 13"])
    figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    stated = table[table["metric"].eq("normalized_performance") & table["paper_value"].notna()]
    for row in stated.itertuples():
        place = places.loc[row.model, row.system]
        axes.scatter([place], [row.paper_value], **PAPER_MARKER)
    axes.scatter([], [], **PAPER_MARKER, label=PAPER_LABEL + " (vDNN: less than)")
    axes.axhline(100, **REFERENCE_LINE)
    axes.set_ylabel("performance (own baseline = 100 %)")
    figure.legend(frameon=False, ncols=5, loc="outside lower center")
    axes.set_title("Layrub, Figure 13: performance over each system's own baseline, K40M", weight="bold")
    return figure
