"""Figure 15: accuracy against batch size, here of LeNet on Fashion-MNIST."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.marks import Stated, finish, mark, numbers
from paper_figs.style import REFERENCE_LINE, read

SAME_RATE = ", same learning rate"
CURVES = (
    ("Layrub-hybrid, batch 128", "accuracy, batch 128", "#3b82c4"),
    (f"Layrub-hybrid, batch 1024{SAME_RATE}", "accuracy, batch 1,024", "#123c69"),
    ("Layrub-hybrid, batch 1024", "accuracy, batch 1,024, eight times the learning rate", "#d98b2b"),
)


def draw() -> Figure:
    curves, summary = read("layrub", "training"), read("layrub", "figure15")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=(3, 2), layout="constrained")
    _draw_curves(left, curves)
    _draw_epochs(right, summary[summary["item"] == "Figure 15"], _stated(summary))
    return finish(
        figure, "Layrub, Figure 15 in kind: LeNet on Fashion-MNIST", ours="Lines", how="measured on a CPU",
    )  # fmt: skip


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


def _draw_epochs(axes: Axes, shown: pd.DataFrame, papers: dict[int, Stated]) -> None:
    """Draw the epochs to the target accuracy over the batch size relative to the smallest, and the paper's two."""
    epochs = shown[(shown["metric"] == "epochs_to_accuracy") & shown["measured_value"].notna()]
    epochs = epochs[epochs["system"].str.startswith("Layrub-hybrid")]
    smallest = epochs["batch_size"].min()
    same_rate = epochs["system"].str.endswith(SAME_RATE) | (epochs["batch_size"] == smallest)
    for chosen, label, color, style in (
        (~epochs["system"].str.endswith(SAME_RATE), "epochs, larger rate (diverges: at least)", "#123c69", "o-"),
        (same_rate, "epochs, same learning rate", "#7f8c8d", "s--"),
    ):
        rows = epochs[chosen].sort_values("batch_size")
        reference = rows["measured_value"].iloc[0]
        axes.plot(rows["batch_size"] / smallest, rows["measured_value"] / reference, style, color=color, label=label)
    small, large = sorted(papers)
    for batch_size in (small, large):
        number = papers[batch_size].changed(lambda found: found / papers[small].value)
        mark(axes, batch_size / small, number)
    axes.axhline(1, **REFERENCE_LINE)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.set_ylim(0, None)
    axes.set_xlabel("batch size (smallest = 1)")
    axes.set_ylabel("epochs to the same accuracy\n(smallest batch = 1)")


def _stated(summary: pd.DataFrame) -> dict[int, Stated]:
    """Return the paper's epochs by batch size."""
    rows = numbers(summary[summary["metric"] == "epochs_to_similar_accuracy"], "layrub")
    return {int(row.batch_size): Stated(row.paper_value, row.standing) for row in rows.itertuples()}
