"""Figure 10: accuracy with the activations that are kept rounded, here of a small network on Fashion-MNIST."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from paper_figs.marks import finish
from paper_figs.style import in_order, read

STYLES = {
    "PyTorch baseline": {"color": "#d1495b", "marker": "+", "linestyle": "-"},
    "EPMC FP16": {"color": "#2e8b57", "marker": "x", "linestyle": "--"},
    "EPMC FP10": {"color": "#123c69", "marker": ".", "linestyle": "-."},
    "EPMC FP8": {"color": "#d98b2b", "marker": "1", "linestyle": ":"},
}
"""The first two as the paper describes its own: red pluses and green crosses."""


def draw() -> Figure:
    figure, (curves, ends) = plt.subplots(1, 2, figsize=(9.5, 4.2), width_ratios=(3, 2), layout="constrained")
    _draw_curves(curves)
    _draw_ends(ends)
    title = "EPMC, Figure 10 in kind: a narrow AlexNet on Fashion-MNIST"
    return finish(figure, title, ours="Marks", how="measured on a CPU")


def _draw_curves(axes: Axes) -> None:
    """Draw the training accuracy of each format, the mean of its seeds."""
    table = read("epmc", "training")
    for name in in_order(table["training"]):
        means = 100 * table[table["training"] == name].groupby("epoch")["training_accuracy"].mean()
        axes.plot(means.index, means, **STYLES[name], markersize=6, linewidth=1.1, label=name)
    axes.set_xlabel("epochs")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("training accuracy (%), mean of the seeds")


def _draw_ends(axes: Axes) -> None:
    """Draw the test accuracy of each format in the last epoch, of every seed: their spread hides the formats."""
    table = read("epmc", "training")
    last = table[table["epoch"] == table["epoch"].max()]
    for place, name in enumerate(in_order(last["training"])):
        accuracies = 100 * last[last["training"] == name]["test_accuracy"]
        axes.plot([place] * len(accuracies), accuracies, **{**STYLES[name], "linestyle": "none"}, markersize=8)
        axes.hlines(accuracies.mean(), place - 0.25, place + 0.25, color=STYLES[name]["color"], linewidth=1.4)
    names = in_order(last["training"])
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    axes.set_ylabel("test accuracy in the last epoch (%),\nevery seed and the mean")
    axes.grid(visible=False, axis="x")
