"""Figure 10: training accuracy with the activations that are kept rounded, here of a small network on Fashion-MNIST."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.style import in_order, read

COLORS = {"PyTorch baseline": "#7f8c8d", "EPMC FP16": "#123c69", "EPMC FP10": "#3b82c4", "EPMC FP8": "#d98b2b"}


def draw() -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for axis, metric, title in zip(
        axes, ("training_accuracy", "test_accuracy"), ("training images", "test images"), strict=True
    ):
        _draw(axis, metric)
        axis.set_title(title)
    axes[0].set_ylabel("accuracy (%)")
    axes[0].legend(frameon=False, title="mean and range of eight seeds", loc="lower right")
    figure.suptitle(
        "EPMC, Figure 10 in kind: a narrow AlexNet on Fashion-MNIST", x=0.01, ha="left", weight="bold", size=11
    )
    return figure


def _draw(axes: Axes, metric: str) -> None:
    curves = read("epmc", "training")
    for name in in_order(curves["training"]):
        seeds = 100 * curves[curves["training"] == name].pivot_table(index="epoch", columns="seed", values=metric)
        axes.plot(seeds.index, seeds.mean(axis=1), color=COLORS[name], label=name, linewidth=1.6)
        axes.fill_between(
            seeds.index, seeds.min(axis=1), seeds.max(axis=1), color=COLORS[name], alpha=0.15, linewidth=0
        )
    axes.set_xlabel("epochs")
    axes.set_xlim(1, None)
