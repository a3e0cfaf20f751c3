"""Figure 15: accuracy against batch size, here of LeNet on Fashion-MNIST."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.style import PAPER_LABEL, PAPER_MARKER, read

SAME_RATE = ", same learning rate"
CURVES = (
    ("Layrub-hybrid, batch 128", "batch 128", "#3b82c4"),
    (f"Layrub-hybrid, batch 1024{SAME_RATE}", "batch 1024", "#123c69"),
    ("Layrub-hybrid, batch 1024", "batch 1024, eight times the learning rate", "#d98b2b"),
)


def draw() -> Figure:
    curves, summary = read("layrub", "training"), read("layrub", "figure15")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=(3, 2), layout="constrained")
    _draw_curves(left, curves)
    _draw_epochs(right, summary[summary["item"] == "Figure 15"], _stated(summary))
    figure.suptitle("Layrub, Figure 15 in kind: LeNet on Fashion-MNIST", x=0.01, ha="left", weight="bold", size=11)
    return figure


def _draw_curves(axes: Axes, curves: pd.DataFrame) -> None:
    """Draw the mean test accuracy of each training, and the range of its seeds."""
    for name, label, color in CURVES:
        seeds = 100 * curves[curves["training"] == name].pivot_table(
            index="epoch", columns="seed", values="test_accuracy"
        )
        axes.plot(seeds.index, seeds.mean(axis=1), color=color, label=label, linewidth=1.6)
        axes.fill_between(seeds.index, seeds.min(axis=1), seeds.max(axis=1), color=color, alpha=0.25, linewidth=0)
    axes.set_xlabel("epochs")
    axes.set_ylabel("test accuracy (%)")
    axes.set_ylim(0, 100)
    axes.set_xlim(1, None)
    axes.legend(frameon=False, fontsize=8, loc="center right")


def _draw_epochs(axes: Axes, shown: pd.DataFrame, stated: dict[int, float]) -> None:
    """Draw the epochs to the target accuracy over the batch size relative to the smallest, and the paper's two."""
    epochs = shown[(shown["metric"] == "epochs_to_accuracy") & shown["measured_value"].notna()]
    epochs = epochs[epochs["system"].str.startswith("Layrub-hybrid")]
    smallest = epochs["batch_size"].min()
    same_rate = epochs["system"].str.endswith(SAME_RATE) | (epochs["batch_size"] == smallest)
    for chosen, label, color, style in (
        (~epochs["system"].str.endswith(SAME_RATE), "learning rate grows: at least,\nas it diverges", "#123c69", "o-"),
        (same_rate, "same learning rate", "#7f8c8d", "s--"),
    ):
        rows = epochs[chosen].sort_values("batch_size")
        reference = rows["measured_value"].iloc[0]
        axes.plot(rows["batch_size"] / smallest, rows["measured_value"] / reference, style, color=color, label=label)
    small, large = sorted(stated)
    axes.scatter(
        [1, large / small], [1, stated[large] / stated[small]], **PAPER_MARKER, label=f"AlexNet, {PAPER_LABEL}"
    )
    axes.axhline(1, color="#374151", linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.set_ylim(0, None)
    axes.set_xlabel("batch size (smallest = 1)")
    axes.set_ylabel("epochs to the same accuracy\n(smallest batch = 1)")
    axes.legend(frameon=False, fontsize=8)


def _stated(summary: pd.DataFrame) -> dict[int, float]:
    """Return the paper's epochs by batch size."""
    rows = summary[(summary["metric"] == "epochs_to_similar_accuracy") & summary["paper_value"].notna()]
    return dict(zip(rows["batch_size"].astype(int), rows["paper_value"], strict=True))
