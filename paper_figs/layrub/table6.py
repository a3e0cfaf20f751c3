"""Table 6 drawn: total memory of ever deeper networks, and which of them a card can train."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.marks import finish, mark_rows, numbers
from paper_figs.style import (
    REFERENCE_LINE,
    bar_groups,
    by_system,
    device_memory_mb,
    in_order,
    mark_out_of_memory,
    read,
    thousands,
)


def draw() -> Figure:
    table = read("layrub", "table6")
    devices = sorted(in_order(table["device"]), reverse=True)
    figure, panels = plt.subplots(len(devices), 1, figsize=(9.5, 6.2), sharex=True, layout="constrained")
    for axes, device in zip(panels, devices, strict=True):
        _panel(axes, table[table["device"] == device])
        axes.set_title(device.removeprefix("NVIDIA "))
    figure.supylabel("total memory of a training step (MB)", fontsize=10)
    panels[-1].set_xlabel("layers of the ResNet")
    return finish(figure, "Layrub, Table 6: which networks fit (ImageNet, batch 32)")


def _panel(axes: Axes, frame: pd.DataFrame) -> None:
    values = by_system(frame)
    places = bar_groups(axes, values, COLORS)
    mark_rows(axes, places, numbers(frame, "layrub"))
    mark_out_of_memory(axes, places, frame, COLORS)
    capacity_mb = device_memory_mb("layrub", frame["device"].iloc[0])
    axes.axhline(capacity_mb, **REFERENCE_LINE, label="memory of the card")
    axes.set_xticks(range(len(values)), [model.removeprefix("ResNet-") for model in values.index])
    axes.set_xlim(-0.6, len(values) - 0.4)
    axes.set_ylim(0, 1.15 * capacity_mb)
    thousands(axes.yaxis)
