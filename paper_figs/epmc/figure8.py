"""Figure 8: how many times as large as the encoded maps those are that the baseline stores."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import PAPER_LABEL, PAPER_MARKER, REFERENCE_LINE, bar_groups, by_system, read


def draw() -> Figure:
    table = read("epmc", "figure8")
    values = by_system(table[table["item"] == "Figure 8"])
    figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    places = bar_groups(axes, values)
    stated = table[(table["metric"] == "MFR") & (table["model"] == "VGG-16")]["paper_value"].dropna()
    axes.scatter([places.loc["VGG-16", "EPMC"]], [stated.iloc[0]], **PAPER_MARKER)
    axes.scatter([], [], **PAPER_MARKER, label=PAPER_LABEL)
    axes.axhline(1, **REFERENCE_LINE, label="baseline")
    axes.set_ylabel("memory footprint ratio")
    figure.legend(frameon=False, ncols=4, loc="outside lower center")
    axes.set_title("EPMC, Figure 8: stored maps over encoded maps", weight="bold")
    return figure
