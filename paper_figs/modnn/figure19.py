"""Figure 19: four GPUs with 3 GB each against one with 12 GB, both under moDNN."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark_means, stated
from paper_figs.modnn.colors import COLORS
from paper_figs.style import bar_groups, by_system, read, with_mean

PAPERS = {
    "moDNN, 1 core": "moDNN 4 GPUs x 3 GB, 1 core, vs moDNN 1 GPU 12 GB",
    "moDNN, 20 cores": "moDNN 4 GPUs x 3 GB, 20 cores, vs moDNN 1 GPU 12 GB",
}


def draw() -> Figure:
    four, one = read("modnn", "figure18"), read("modnn", "figure10")
    times = by_system(four[four["metric"] == "training_time:3 GB"])[list(PAPERS)]
    one_gpu = by_system(one[(one["item"] == "Figure 10") & (one["metric"] == "training_time")])["moDNN"]
    values = with_mean(1 / times.div(one_gpu, axis=0))
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    table = read("modnn", "figure19")
    mark_means(axes, places, {name: stated(table, "modnn", system=system) for name, system in PAPERS.items()})
    axes.set_ylabel("speedup over one GPU")
    return finish(figure, "moDNN, Figure 19: four K40 with 3 GB each against one with 12 GB")
