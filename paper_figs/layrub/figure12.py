"""Figure 12: runtime memory under different systems."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.marks import finish, mark_rows, numbers
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, device_memory_mb, log_axis, read, with_batch_sizes


def draw() -> Figure:
    table = read("layrub", "figure12")
    shown = table[table["item"] == "Figure 12"]
    values = by_system(shown)
    figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    mark_rows(axes, places, numbers(table[table["metric"] == "runtime_memory"], "layrub"))
    capacity_mb = device_memory_mb("layrub", "NVIDIA Tesla K40M")
    axes.axhline(capacity_mb, **REFERENCE_LINE, label="memory of a K40M")
    log_axis(axes, [100, 200, 500, 1000, 2000, 5000, 10_000])
    axes.set_ylim(80, None)
    with_batch_sizes(axes, shown)
    axes.set_ylabel("runtime memory (MB, log scale)")
    return finish(figure, "Layrub, Figure 12: runtime memory of each system, K40M")
