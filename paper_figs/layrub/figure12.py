"""Figure 12: runtime memory under different systems."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.style import (
    PAPER_LABEL,
    PAPER_MARKER,
    REFERENCE_LINE,
    bar_groups,
    by_system,
    device_memory_mb,
    log_axis,
    read,
)


def draw() -> Figure:
    table = read("layrub", "figure12")
    values = by_system(table[table["item"] == "Figure 12"])
    figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    stated = table[(table["metric"] == "runtime_memory") & table["paper_value"].notna()]
    for row in stated.itertuples():
        if row.model in values.index:
            axes.scatter([places.loc[row.model, row.system]], [row.paper_value], **PAPER_MARKER)
    axes.scatter([], [], **PAPER_MARKER, label=PAPER_LABEL)
    capacity_mb = device_memory_mb("layrub", "NVIDIA Tesla K40M")
    axes.axhline(capacity_mb, **REFERENCE_LINE, label="memory of a K40M")
    log_axis(axes, [500, 1000, 2000, 5000, 10_000])
    axes.set_ylabel("runtime memory (MB, log scale)")
    figure.legend(frameon=False, ncols=3, loc="outside lower center")
    axes.set_title("Layrub, Figure 12: runtime memory of each system, K40M", weight="bold")
    return figure
