"""Table 6 drawn: total memory of ever deeper networks, and which of them a card can train."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.style import COLORS, PAPER_LABEL, PAPER_MARKER, in_order, read

SYSTEMS = ("Caffe", "Layrub-hybrid")


def draw() -> Figure:
    table = read("layrub", "table6")
    table = table[table["system"].isin(SYSTEMS)]
    devices = sorted(in_order(table["device"]), reverse=True)
    figure, panels = plt.subplots(1, len(devices), figsize=(9.5, 3.6), sharey=True, layout="constrained")
    for axes, device in zip(panels, devices, strict=True):
        _panel(axes, table[table["device"] == device])
        axes.set_title(device.removeprefix("NVIDIA "))
    panels[0].set_ylabel("total memory of a training step (MB)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=4, loc="outside lower center")
    figure.suptitle(
        "Layrub, Table 6: which networks fit (ImageNet, batch 32)", x=0.01, ha="left", weight="bold"
    )
    return figure


def _panel(axes: Axes, frame: pd.DataFrame) -> None:
    models = in_order(frame["model"])
    for number, system in enumerate(SYSTEMS):
        rows = frame[frame["system"] == system].set_index("model").loc[models]
        places = [position + (number - 0.5) * 0.38 for position in range(len(models))]
        axes.bar(places, rows["simulated_value"], 0.36, color=COLORS[system], label=system)
        label = PAPER_LABEL if number == 0 else None
        axes.scatter(places, rows["paper_value"], **PAPER_MARKER, label=label)
        for place, outcome in zip(places, rows["outcome"], strict=True):
            if outcome == "out_of_memory":
                axes.text(
                    place, 150, "out of memory", rotation=90, ha="center", fontsize=6.5, color=COLORS[system]
                )
    axes.set_xticks(range(len(models)), [model.removeprefix("ResNet-") for model in models])
    axes.set_xlim(-0.6, len(models) - 0.4)
    axes.set_xlabel("layers of the ResNet")
    axes.grid(visible=False, axis="x")
