"""Figure 11: what is offloaded and prefetched within 12 GB."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, stated
from paper_figs.modnn.colors import COLORS
from paper_figs.style import bar_groups, by_system, label_bars, log_axis, read


def draw() -> Figure:
    table = read("modnn", "figure11")
    values = by_system(table[table["item"] == "Figure 11"])
    figure, axes = plt.subplots(figsize=(8.4, 3.8), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    label_bars(axes, places, values, lambda size_gb: f"{size_gb:.2f}" if size_gb < 1 else f"{size_gb:.0f}")
    log_axis(axes, (0.05, 0.1, 1, 10, 100))
    axes.set_ylim(0.03, 200)
    axes.set_ylabel("offloaded and prefetched in a step\n(GB, log scale)")
    mean = (values["vDNN"] / values["moDNN"]).mean()
    paper = stated(table, "modnn", metric="transferred_data_reduction_avg").value
    note = f"vDNN's over moDNN's on average: {mean:.0f} (paper: {paper:.0f})"
    return finish(figure, "moDNN, Figure 11: transferred data, K40 with 12 GB", note=note)
