"""Figure 9: additional memory translations and running time against the memory limit."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from paper_figs.marks import finish
from paper_figs.style import in_order, read

MARKERS = {"AlexNet": ("o", "#123c69"), "VGG-S": ("s", "#3b82c4"), "VGG-D19": ("^", "#d98b2b")}


def draw() -> Figure:
    table = read("mmcnn", "figure9")
    shown = table[table["item"] == "Figure 9"].copy()
    shown[["metric", "limit_mb"]] = shown["metric"].str.extract(r"(\w+):([\d.]+) MB")
    shown["limit_mb"] = shown["limit_mb"].astype(float)
    figure, (copies, time) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
    for model in in_order(shown["model"]):
        of_model = shown[shown["model"] == model]
        marker, color = MARKERS[model]
        style = {"marker": marker, "color": color, "markersize": 4, "label": model}
        made = _curve(of_model, "copies")
        copies.plot(made - made.iloc[0], **style)
        time.plot(_curve(of_model, "inference_time"), **style)
    copies.set_ylabel("additional memory translations\n(copies beyond those at 100 MB)")
    time.set_ylabel("running time of an inference (ms)")
    limits = sorted(set(shown["limit_mb"]), reverse=True)
    for axes in (copies, time):
        axes.set_ylim(0, None)
        axes.set_xscale("log")
        axes.set_xlim(limits[0] * 1.1, limits[-1] / 1.1)
        axes.set_xticks(limits, [f"{limit:g}" for limit in limits])
        axes.minorticks_off()
        axes.set_xlabel("memory limit (MB)")
    return finish(figure, "mmCNN, Figure 9: performance against the memory limit", ours="Lines")


def _curve(shown: pd.DataFrame, metric: str) -> pd.Series:
    """Return a quantity by the limit, from the largest down."""
    curve = shown[shown["metric"] == metric].set_index("limit_mb")["simulated_value"]
    return curve.sort_index(ascending=False)
