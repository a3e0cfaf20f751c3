"""Figure 2: memory of deep and of wide models (the paper's second axis, accuracy, is not reproduced)."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.style import PAPER_LABEL, PAPER_MARKER, in_order, read


def draw() -> Figure:
    table = read("layrub", "figure2")
    shown = table[table["item"] == "Figure 2"]
    figure, (deep, wide) = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=[7, 4], layout="constrained")
    _stacked(deep, shown[shown["dataset"] == "ImageNet"])
    deep.set_title("deep models: ImageNet, batch 32")
    stated = table[(table["metric"] == "memory_usage_max") & table["paper_value"].notna()]
    last = len(in_order(shown[shown["dataset"] == "ImageNet"]["model"])) - 1
    deep.scatter([last], stated["paper_value"], **PAPER_MARKER, label=PAPER_LABEL)
    deep.legend(frameon=False)
    _stacked(wide, shown[shown["dataset"] == "Cifar-10"])
    wide.set_title("wide models: CIFAR-10, batch 128")
    figure.suptitle("Layrub, Figure 2: memory of a training step in Caffe", x=0.01, ha="left", weight="bold")
    return figure


def _stacked(axes: Axes, frame: pd.DataFrame) -> None:
    models = in_order(frame["model"])
    values = frame.pivot_table(index="model", columns="metric", values="simulated_value", sort=False).loc[models]
    axes.bar(models, values["parameters"], 0.65, color=COLORS["parameters"], label="parameters")
    maps = values["activations_and_gradients"]
    color = COLORS["activations_and_gradients"]
    axes.bar(models, maps, 0.65, bottom=values["parameters"], color=color, label="activations and gradients")
    axes.set_ylabel("memory (GB)")
    axes.grid(visible=False, axis="x")
    axes.tick_params("x", rotation=35)
