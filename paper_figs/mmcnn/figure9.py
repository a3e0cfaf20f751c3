"""Figure 9: running time against the memory limit."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import in_order, read

MARKERS = {"AlexNet": ("o", "#123c69"), "VGG-S": ("s", "#3b82c4"), "VGG-D19": ("^", "#d98b2b")}


def draw() -> Figure:
    shown = read("mmcnn", "figure9")
    shown = shown[shown["metric"].str.startswith("inference_time")]
    figure, panels = plt.subplots(1, 3, figsize=(9.5, 3.0), layout="constrained")
    for axes, model in zip(panels, in_order(shown["model"]), strict=True):
        rows = shown[shown["model"] == model]
        limits = rows["metric"].str.extract(r":([\d.]+) MB")[0].astype(float)
        marker, color = MARKERS[model]
        axes.plot(limits, rows["simulated_value"], marker=marker, color=color, markersize=4)
        axes.set_title(model)
        axes.set_xlabel("memory limit (MB)")
        axes.set_ylim(0, 1.15 * rows["simulated_value"].max())
    panels[0].set_ylabel("time of an inference (ms)")
    figure.suptitle("mmCNN, Figure 9: running time against the limit, simulated", x=0.01, ha="left", weight="bold")
    return figure
