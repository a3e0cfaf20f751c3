"""Figures 7 and 8 alike: parts of weights upwards, parts of layers downwards, for each memory limit."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish
from paper_figs.mmcnn.colors import COLORS
from paper_figs.style import in_order, log_axis, read


def parts_figure(number: int, model: str) -> Figure:
    """Draw the bars of a figure; a layer that is computed as a whole has a self_number of one."""
    shown = read("mmcnn", f"figure{number}")
    shown = shown[shown["item"] == f"Figure {number}"]
    limits = in_order(shown["system"])
    figure, panels = plt.subplots(2, len(limits), figsize=(11, 4.2), sharex=True, sharey="row", layout="constrained")
    for column, limit in enumerate(limits):
        rows = shown[shown["system"] == limit]
        for axes, metric in zip(panels[:, column], ("conv_number", "self_number"), strict=True):
            of_metric = rows[rows["metric"].str.startswith(metric)]
            layers = of_metric["metric"].str.extract(r"layer (\d+)")[0].astype(int)
            axes.bar(layers, of_metric["simulated_value"], 0.8, color=COLORS[metric], label=metric)
            axes.grid(visible=False, axis="x")
        panels[0, column].set_title(limit.removeprefix("mmCNN, memory "))
        panels[1, column].set_xlabel("layer")
    largest = shown[shown["metric"].str.startswith("self_number")]["simulated_value"].max()
    log_axis(panels[1, 0], [tick for tick in (1, 2, 5, 10, 20, 50, 100) if tick <= largest])
    panels[1, 0].set_ylim(1.25 * largest, 0.9)
    panels[0, 0].set_yticks(range(6))
    panels[0, 0].set_ylabel("parts of weights\n(conv_number)")
    panels[1, 0].set_ylabel("parts of a layer\n(self_number, log scale)")
    return finish(figure, f"mmCNN, Figure {number}: parts of weights and of layers, {model}", how="planned")
