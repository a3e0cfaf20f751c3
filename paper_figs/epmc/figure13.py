"""Figure 13: dense over encoded size of a random map, by how many of its elements are zero."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.marks import Stated, finish, mark, numbers
from paper_figs.style import REFERENCE_LINE, in_order, log_axis, read


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
    papers = numbers(table, "epmc")
    for sparsity, row in zip((10, 90), papers[papers["metric"] == "MFR"].itertuples(), strict=True):
        mark(axes, sparsity, Stated(row.paper_value, row.standing))
    for row in papers[papers["metric"] == "break_even_sparsity"].itertuples():
        mark(axes, row.paper_value, Stated(1, row.standing))
    axes.axhline(1, **REFERENCE_LINE, label="no gain")
    log_axis(axes, (0.25, 0.5, 1, 2, 4, 8, 13))
    axes.set_xlabel("input sparsity (% of zeros)")
    axes.set_ylabel("memory footprint ratio\n(dense over encoded size, log scale)")
    return finish(
        figure, "EPMC, Figure 13: five encodings of a random map", ours="Lines", how="measured on real encodings"
    )
