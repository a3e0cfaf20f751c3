"""Figure 1: memory of the baseline, and how much of it one layer uses at most."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import PAPER_LABEL, PAPER_MARKER, REFERENCE_LINE, in_order, read
from paper_figs.vdnn.colors import COLORS


def draw() -> Figure:
    table = read("vdnn", "figure1")
    shown = table[table["item"] == "Figure 1"]
    models = in_order(shown["model"])
    values = shown.pivot_table(index="model", columns="metric", values="simulated_value").loc[models]
    figure, (memory, share) = plt.subplots(1, 2, figsize=(9.5, 3.5), layout="constrained")
    memory.bar(models, values["memory"], 0.6, color=COLORS["base(p)"], label="base(p)")
    papers = table[table["metric"] == "memory_usage"].drop_duplicates("model").set_index("model")["paper_value"]
    paper = {"AlexNet": papers["AlexNet"], "VGG-16 (256)": papers["VGG-16"]}
    memory.scatter(list(paper), list(paper.values()), **PAPER_MARKER, label=PAPER_LABEL)
    memory.axhline(12, **REFERENCE_LINE, label="memory of a K40")
    memory.set_ylabel("memory (GB)")
    memory.legend(frameon=False)
    share.bar(models, 100 - values["unused_by_any_layer"], 0.6, color=COLORS["base(p)"])
    unused = table.set_index("metric")["paper_value"]
    share.axhspan(
        100 - unused["memory_unused_max"], 100 - unused["memory_unused_min"],
        color=PAPER_MARKER["color"], alpha=0.2, linewidth=0, label="range stated in the paper, deeper networks",
    )  # fmt: skip
    share.set_ylabel("largest share that one layer uses (%)")
    share.set_ylim(0, 100)
    share.legend(frameon=False)
    for axes in (memory, share):
        axes.grid(visible=False, axis="x")
        axes.tick_params("x", rotation=25)
    figure.suptitle("vDNN, Figure 1: network-wide allocation, K40", x=0.01, ha="left", weight="bold")
    return figure
