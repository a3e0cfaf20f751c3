"""Figure 14: time of a step under Layrub, normalised to Caffe's (its MXNet bars wait for MXNet)."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import COLORS, PAPER_MARKER, in_order, read


def draw() -> Figure:
    shown = read("layrub", "figure14")
    table5 = read("layrub", "table5")
    overheads = table5[
        (table5["metric"] == "time_overhead_vs_own_baseline") & (table5["system"] == "Layrub-hybrid")
    ]
    papers = overheads.set_index("model")["paper_value"]
    models = in_order(shown["model"])
    ours = shown.set_index("model")["simulated_value"].loc[models]
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    axes.bar(models, [1] * len(models), 0.6, color=COLORS["Caffe"], label="Caffe")
    axes.bar(models, ours - 1, 0.6, bottom=1, color=COLORS["Layrub-hybrid"], label="Layrub-hybrid's overhead")
    axes.scatter(
        models,
        1 + papers.loc[models] / 100,
        **PAPER_MARKER,
        label="1 + overhead stated in the paper's Table 5",
    )
    for model in models:
        axes.annotate(
            f"{100 * (ours[model] - 1):+.0f}%", (model, max(ours[model], 1 + papers[model] / 100)),
            xytext=(0, 6), textcoords="offset points", ha="center", fontsize=7.5,
        )  # fmt: skip
    axes.set_ylabel("step time (Caffe = 1)")
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.1)
    figure.legend(frameon=False, ncols=3, loc="outside lower center")
    axes.set_title("Layrub, Figure 14: cost of the migration, K40M", weight="bold")
    return figure
