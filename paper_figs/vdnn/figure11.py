"""Figure 11: bandwidth of device memory that each convolution of VGG-16 uses."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import PAPER_LABEL, PAPER_MARKER, REFERENCE_LINE, bar_groups, read, stated
from paper_figs.vdnn.colors import COLORS


def draw() -> Figure:
    table = read("vdnn", "figure11")
    shown = table[(table["item"] == "Figure 11") & (table["system"] == "base(p)")].copy()
    shown[["metric", "layer"]] = shown["metric"].str.split(":", expand=True)
    values = shown.pivot_table(index="layer", columns="metric", values="simulated_value", sort=False)
    values = values.rename(columns=lambda metric: metric.removesuffix("_bandwidth_share"))
    values.index = [f"conv {number + 1}" for number in range(len(values))]
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    bar_groups(axes, values[["forward", "backward"]], COLORS)
    copy = table[table["metric"] == "copy_bandwidth_share"].iloc[0]
    axes.axhline(copy["simulated_value"], **REFERENCE_LINE, label="a copy takes at most")
    axes.axhline(
        stated(table, metric="dram_interference_worst_case"),
        color=PAPER_MARKER["color"], linewidth=0.9, linestyle=":", label=PAPER_LABEL,
    )  # fmt: skip
    axes.set_ylabel("share of memory bandwidth (%)")
    axes.tick_params("x", rotation=60)
    figure.legend(frameon=False, ncols=4, loc="outside lower center")
    axes.set_title("vDNN, Figure 11: memory bandwidth of VGG-16 (64), base(p)", weight="bold")
    return figure
