"""Figure 18: speedup on four GPUs with smaller budgets over the ideal case on one."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark_means, stated
from paper_figs.modnn.colors import COLORS
from paper_figs.style import bar_groups, by_system, read, with_mean

PAPERS = {
    "moDNN, naive accumulation": "moDNN naive accumulation, 4 GPUs, {} per GPU, vs 1-GPU ideal case",
    "moDNN, 1 core": "moDNN, 4 GPUs, 1 core, {} per GPU, vs 1-GPU ideal case",
    "moDNN, 20 cores": "moDNN, 4 GPUs, 20 cores, {} per GPU, vs 1-GPU ideal case",
}


def draw() -> Figure:
    figure, panels = plt.subplots(2, 1, figsize=(8.4, 5.4), sharex=True, sharey=True, layout="constrained")
    for axes, budget in zip(panels, ("6 GB", "3 GB"), strict=True):
        _draw(axes, budget)
        axes.set_ylabel(f"speedup, {budget} each")
    return finish(figure, "moDNN, Figure 18: speedup on four K40 over the ideal case on one")


def _draw(axes: Axes, budget: str) -> None:
    table, ideal = read("modnn", "figure18"), read("modnn", "figure17")
    times = by_system(table[table["metric"] == f"training_time:{budget}"])
    one_gpu = by_system(ideal[(ideal["item"] == "Figure 17") & (ideal["system"] == "ideal case")])
    values = with_mean(1 / times.div(one_gpu["ideal case"], axis=0))
    places = bar_groups(axes, values, COLORS)
    mark_means(
        axes, places, {name: stated(table, "modnn", system=PAPERS[name].format(budget)) for name in values.columns}
    )
