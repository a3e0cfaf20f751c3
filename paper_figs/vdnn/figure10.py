"""Figure 10: what each policy offloads to pinned host memory."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import PAPER_LABEL, PAPER_MARKER, bar_groups, by_system, mark_out_of_memory, read
from paper_figs.vdnn.colors import COLORS


def draw() -> Figure:
    table = read("vdnn", "figure10")
    shown = table[table["item"] == "Figure 10"]
    values = by_system(shown)
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    mark_out_of_memory(axes, places, shown, COLORS)
    paper = table.loc[table["metric"].eq("offloaded_size") & table["paper_value"].notna(), "paper_value"]
    place = places.loc["VGG-16 (256)", "vDNN_all(m)"]
    axes.scatter([place], paper, **PAPER_MARKER, label=PAPER_LABEL)
    axes.set_ylabel("offloaded in a step (GB)")
    figure.legend(frameon=False, ncols=6, loc="outside lower center")
    axes.set_title("vDNN, Figure 10: memory offloaded", weight="bold")
    return figure
