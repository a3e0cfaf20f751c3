"""Figure 11: bandwidth of device memory that each convolution of VGG-16 uses."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, level, stated
from paper_figs.style import REFERENCE_LINE, bar_groups, read
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
    axes.axhline(copy["simulated_value"], **REFERENCE_LINE, label="what a copy takes at most")
    level(axes, stated(table, "vdnn", metric="dram_interference_worst_case"))
    axes.set_ylabel("memory bandwidth\n(% of 288 GB/s)")
    axes.tick_params("x", rotation=60)
    return finish(figure, "vDNN, Figure 11: memory bandwidth of VGG-16 (64), base(p)")
