"""Table 2 drawn: what takes the memory in training of VGG-16."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import PAPER_LABEL, PAPER_MARKER, read

PARTS = {
    "memory_params": "weights",
    "memory_sgd": "gradients",
    "memory_momentum": "momentum",
    "memory_layer_outputs": "layer outputs",
    "memory_total": "total",
}
MB_IN_GB = 1024  # as the paper adds them up


def draw() -> Figure:
    table = read("epmc", "table2")
    rows = table[table["item"] == "Table 2"].set_index("metric").loc[list(PARTS)]
    in_gb = rows["unit"].map({"MB": 1 / MB_IN_GB, "GB": 1.0})
    ours, stated = rows["simulated_value"] * in_gb, rows["paper_value"] * in_gb
    figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
    names = list(PARTS.values())
    axes.barh(names, ours, 0.6, color="#3b82c4", label="computed from the graph")
    axes.scatter(stated, names, **PAPER_MARKER, label=PAPER_LABEL)
    for name, value, paper in zip(names, ours, stated, strict=True):
        at = (max(value, paper), name)
        axes.annotate(f"{value:.2f} ({paper:.2f})", at, (8, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(*ours, *stated))
    axes.set_xlabel("memory at batch 128 (GB; in brackets the paper's)")
    axes.grid(visible=False, axis="y")
    figure.legend(frameon=False, ncols=2, loc="outside lower center")
    axes.set_title("EPMC, Table 2: memory of VGG-16 in training", weight="bold")
    return figure
