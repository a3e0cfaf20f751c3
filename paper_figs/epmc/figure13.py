"""Figure 13: dense over encoded size of a random map, by how many of its elements are zero."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.style import PAPER_LABEL, PAPER_MARKER, REFERENCE_LINE, in_order, log_axis, read


def draw() -> Figure:
    table = read("epmc", "figure13")
    shown = table[table["item"] == "Figure 13"].copy()
    shown["sparsity"] = shown["metric"].str.split(":").str[1].astype(int)
    figure, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    for system in in_order(shown["system"]):
        of_system = shown[shown["system"] == system]
        axes.plot(
            of_system["sparsity"], of_system["simulated_value"], "o-", markersize=4, label=system, color=COLORS[system]
        )
    stated = table[(table["metric"] == "MFR") & table["paper_value"].notna()]
    axes.scatter([10, 90], stated["paper_value"], **PAPER_MARKER)
    even = table[(table["metric"] == "break_even_sparsity") & table["paper_value"].notna()]
    axes.scatter(even["paper_value"], [1] * len(even), **PAPER_MARKER, label=PAPER_LABEL)
    axes.axhline(1, **REFERENCE_LINE)
    log_axis(axes, (0.25, 0.5, 1, 2, 4, 8, 13))
    axes.set_xlabel("zeros (%)")
    axes.set_ylabel("dense size over encoded size")
    figure.legend(frameon=False, ncols=6, loc="outside lower center", columnspacing=1.0)
    axes.set_title("EPMC, Figure 13: five encodings of a random map", weight="bold")
    return figure
