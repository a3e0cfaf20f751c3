"""Figure 13: memory of each technique alone."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.modnn.colors import COLORS
from paper_figs.style import bar_groups, by_system, log_axis, mark_means, read, stated, with_mean


def draw() -> Figure:
    table = read("modnn", "figure13")
    shares = by_system(table[table["item"] == "Figure 13"])
    values = with_mean(100 / shares)
    figure, axes = plt.subplots(figsize=(8.4, 3.8), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    papers = {
        "sub-batch size selection": stated(table, system="moDNN sub-batch size selection only vs ideal case"),
        "offloading and prefetching": stated(table, system="moDNN offload/prefetch only vs ideal case"),
    }
    saved = stated(table, system="moDNN convolution algorithm selection only vs ideal case")
    mark_means(axes, places, {**papers, "convolution algorithm selection": 100 / (100 - saved)})
    log_axis(axes, [1, 2, 5, 10, 20, 50, 100])
    axes.set_ylim(1, None)
    axes.set_ylabel("times less memory (log scale)")
    figure.legend(frameon=False, ncols=2, loc="outside lower center")
    axes.set_title("moDNN, Figure 13: memory that each technique alone saves of the ideal case's", weight="bold")
    return figure
