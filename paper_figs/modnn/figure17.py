"""Figure 17: speedup on four GPUs over the ideal case on one."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark_means, stated
from paper_figs.modnn.colors import COLORS
from paper_figs.style import bar_groups, by_system, read, with_mean

IDEAL, MODNN = "ideal case, naive accumulation", "moDNN, 1 core"


def draw() -> Figure:
    table = read("modnn", "figure17")
    times = by_system(table[table["item"] == "Figure 17"])
    values = with_mean(1 / times[[IDEAL, MODNN]].div(times["ideal case"], axis=0))
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    papers = {
        IDEAL: "ideal case (naive gradient accumulation), 4 GPUs vs 1-GPU ideal case",
        MODNN: "moDNN, 4 GPUs, 1 CPU core, vs 1-GPU ideal case",
    }
    mark_means(axes, places, {name: stated(table, "modnn", system=system) for name, system in papers.items()})
    axes.set_ylabel("speedup over one GPU")
    return finish(figure, "moDNN, Figure 17: speedup on four K40 over the ideal case on one")
