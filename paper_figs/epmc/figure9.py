"""Figure 9: time of a step with encoded maps over the baseline's, on both of the paper's cards."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.style import PAPER_LABEL, PAPER_MARKER, REFERENCE_LINE, bar_groups, by_system, in_order, read


def draw() -> Figure:
    table = read("epmc", "figure9")
    shown = table[table["item"] == "Figure 9"]
    stated = table[(table["metric"] == "ETR") & table["paper_value"].notna()]
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True, layout="constrained")
    for axes, device in zip(panels, in_order(shown["device"]), strict=True):
        values = by_system(shown[shown["device"] == device])
        places = bar_groups(axes, values, COLORS)
        for _, row in stated.iterrows():
            system = "EPMC" if row["system"].startswith("EPMC") else "CSR-cuSPARSE in series"
            place = places.loc[row["model"], system]
            axes.scatter([place], [row["paper_value"]], **PAPER_MARKER)
        axes.axhline(1, **REFERENCE_LINE)
        axes.set_title(device)
    panels[0].scatter([], [], **PAPER_MARKER, label=f"{PAPER_LABEL}, which names no card")
    panels[0].set_ylabel("time of a step (baseline = 1)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=3, loc="outside lower center")
    figure.suptitle("EPMC, Figure 9: execution time ratio", weight="bold", x=0.01, ha="left", fontsize=11)
    return figure
