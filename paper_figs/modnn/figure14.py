"""Figure 14: time of each technique alone, over the ideal case."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.modnn.colors import COLORS
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, mark_means, read, stated, with_mean


def draw() -> Figure:
    table = read("modnn", "figure14")
    values = with_mean(by_system(table[table["item"] == "Figure 14"]))
    figure, axes = plt.subplots(figsize=(8.4, 3.8), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    overhead = stated(table, system="moDNN offload/prefetch only vs ideal case")
    papers = {
        "sub-batch size selection": stated(table, system="moDNN sub-batch size selection only vs ideal case"),
        "offloading and prefetching": 1 + overhead / 100,
        "convolution algorithm selection": stated(
            table, system="moDNN convolution algorithm selection only vs ideal case"
        ),
    }
    mark_means(axes, places, papers)
    axes.axhline(1, **REFERENCE_LINE)
    axes.set_ylabel("time of one batch (ideal case = 1)")
    figure.legend(frameon=False, ncols=2, loc="outside lower center")
    axes.set_title("moDNN, Figure 14: time that each technique alone takes", weight="bold")
    return figure
