"""Table 6 drawn: total memory of ever deeper networks, and which of them a card can train."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.style import (
    PAPER_LABEL,
    PAPER_MARKER,
    REFERENCE_LINE,
    bar_groups,
    by_system,
    device_memory_mb,
    in_order,
    mark_out_of_memory,
    read,
    thousands,
)

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
    figure.suptitle("Layrub, Table 6: which networks fit (ImageNet, batch 32)", x=0.01, ha="left", weight="bold")
    return figure


def _panel(axes: Axes, frame: pd.DataFrame) -> None:
    values = by_system(frame)
    places = bar_groups(axes, values, COLORS)
    papers = frame.pivot_table(index="model", columns="system", values="paper_value", sort=False)
    for system in SYSTEMS:
        label = PAPER_LABEL if system == SYSTEMS[0] else None
        axes.scatter(places.loc[papers.index, system], papers[system], **PAPER_MARKER, label=label)
    mark_out_of_memory(axes, places, frame, COLORS)
    capacity_mb = device_memory_mb("layrub", frame["device"].iloc[0])
    axes.axhline(capacity_mb, **REFERENCE_LINE, label="memory of the card")
    axes.set_xticks(range(len(values)), [model.removeprefix("ResNet-") for model in values.index])
    axes.set_xlim(-0.6, len(values) - 0.4)
    axes.set_xlabel("layers of the ResNet")
    thousands(axes.yaxis)
