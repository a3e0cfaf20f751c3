"""Figure 14: time of each technique alone, over the ideal case."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark_means, stated
from paper_figs.modnn.colors import COLORS
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, read, with_mean


def draw() -> Figure:
    table = read("modnn", "figure14")
    values = with_mean(by_system(table[table["item"] == "Figure 14"]))
    figure, axes = plt.subplots(figsize=(8.4, 3.8), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    overhead = stated(table, "modnn", system="moDNN offload/prefetch only vs ideal case")
    papers = {
        "sub-batch size selection": stated(table, "modnn", system="moDNN sub-batch size selection only vs ideal case"),
        "offloading and prefetching": overhead.changed(lambda percent: 1 + percent / 100),
        "convolution algorithm selection": stated(
            table, "modnn", system="moDNN convolution algorithm selection only vs ideal case"
        ),
    }
    mark_means(axes, places, papers)
    axes.axhline(1, **REFERENCE_LINE, label="ideal case")
    axes.set_ylabel("time of one batch (ideal case = 1)")
    return finish(figure, "moDNN, Figure 14: time that each technique alone takes")
