"""Figure 6: weights of each layer."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish
from paper_figs.mmcnn.colors import COLORS
from paper_figs.style import in_order, log_axis, read


def draw() -> Figure:
    shown = read("mmcnn", "figure6")
    models = in_order(shown["model"])
    figure, panels = plt.subplots(1, len(models), figsize=(9.5, 3.0), sharey=True, layout="constrained")
    for axes, model in zip(panels, models, strict=True):
        rows = shown[shown["model"] == model]
        layers = rows["metric"].str.extract(r"layer (\d+)")[0].astype(int)
        axes.bar(layers, rows["simulated_value"], 0.8, color=COLORS["weights"], label="weights")
        axes.set_title(model)
        axes.set_xlabel("layer")
        axes.grid(visible=False, axis="x")
    log_axis(panels[0], [0.01, 0.1, 1, 10, 100])
    panels[0].set_ylabel("weights (MB, log scale)")
    return finish(figure, "mmCNN, Figure 6: weights of each layer", how="computed")
