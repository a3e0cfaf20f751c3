"""Figure 3: memory of the baseline by what it holds, and the share of feature extraction."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from paper_figs.style import PAPER_LABEL, PAPER_MARKER, in_order, read
from paper_figs.vdnn.colors import COLORS

PARTS = {
    "weights": "weights",
    "feature_maps": "feature maps",
    "gradient_maps": "gradient maps",
    "workspace": "workspace",
}


def draw() -> Figure:
    table = read("vdnn", "figure3")
    shown = table[table["item"] == "Figure 3"]
    models = in_order(shown["model"])
    values = shown.pivot_table(index="model", columns="metric", values="simulated_value").loc[models]
    figure, (memory, share) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
    bottom = np.zeros(len(models))
    for metric, name in PARTS.items():
        memory.bar(models, values[metric], 0.6, bottom=bottom, color=COLORS[name], label=name)
        bottom += values[metric].to_numpy()
    memory.set_ylabel("memory (GB)")
    memory.legend(frameon=False)
    share.bar(models, values["feature_extraction"], 0.6, color=COLORS["feature maps"])
    papers = table[table["metric"] == "feature_extraction_memory_share"].set_index("model")["paper_value"]
    share.scatter(["AlexNet", "VGG-16 (256)"], papers[["AlexNet", "VGG-16"]], **PAPER_MARKER, label=PAPER_LABEL)
    share.set_ylabel("share of feature extraction (%)")
    share.set_ylim(0, 118)
    share.set_yticks(range(0, 101, 20))
    share.legend(frameon=False, loc="upper right")
    for axes in (memory, share):
        axes.grid(visible=False, axis="x")
        axes.tick_params("x", rotation=25)
    figure.suptitle("vDNN, Figure 3: what the baseline holds, K40", x=0.01, ha="left", weight="bold")
    return figure
