"""Figure 2: memory of deep and of wide models, and the accuracies that the paper cites."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.marks import finish, level, mark, stated
from paper_figs.style import in_order, read, share_axis

ACCURACY = ("top5_accuracy_min", "top5_accuracy_max")


def draw() -> Figure:
    table = read("layrub", "figure2")
    shown = table[table["item"] == "Figure 2"]
    figure, (deep, wide) = plt.subplots(1, 2, figsize=(9.5, 4), width_ratios=[7, 4], layout="constrained")
    is_wide = shown["model"].str.startswith("WRN")
    _stacked(deep, shown[~is_wide])
    deep.set_title("deep models: ImageNet, batch 32")
    last = len(in_order(shown[~is_wide]["model"])) - 1
    mark(deep, last, stated(table, "layrub", metric="memory_usage_max"))
    accuracy = share_axis(deep, "top-5 accuracy (%)")
    for metric in ACCURACY:
        level(accuracy, stated(table, "layrub", metric=metric))
    _stacked(wide, shown[is_wide])
    wide.set_title("wide models: ImageNet, batch 32")
    return finish(figure, "Layrub, Figure 2: memory of a training step in Caffe")


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
