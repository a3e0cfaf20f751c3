"""Table 2 drawn: what takes the memory in training of VGG-16."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import Stated, finish, mark, numbers
from paper_figs.style import read

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
    rows = numbers(table[table["item"] == "Table 2"], "epmc").set_index("metric").loc[list(PARTS)]
    in_gb = rows["unit"].map({"MB": 1 / MB_IN_GB, "GB": 1.0})
    ours, papers = rows["simulated_value"] * in_gb, rows["paper_value"] * in_gb
    figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    for name, value, paper, standing in zip(PARTS.values(), ours, papers, rows["standing"], strict=True):
        axes.bar([name], [value], 0.6, color="#3b82c4")
        mark(axes, name, Stated(paper, standing))
        text = f"{value:.2f}\n(paper {paper:.2f})"
        axes.annotate(text, (name, max(value, paper)), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    axes.set_ylim(0, 1.2 * max(*ours, *papers))
    axes.set_ylabel("memory at batch 128 (GB)")
    axes.grid(visible=False, axis="x")
    return finish(figure, "EPMC, Table 2: memory of VGG-16 in training", how="computed")
