"""Figure 2: what takes the time of a step when cuSPARSE converts every map between the layers."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.marks import Stated, finish, mark, numbers
from paper_figs.style import in_order, read


def draw() -> Figure:
    table = read("epmc", "figure2")
    shown = table[table["item"] == "Figure 2"]
    values = shown.pivot_table(index="model", columns="metric", values="simulated_value")
    values = values.reindex(in_order(shown["model"]))[["compression", "convolution"]]
    values["other layers"] = 100 - values.sum(axis=1)
    figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    below = values["compression"] * 0
    for part in values.columns:
        axes.bar(values.index, values[part], 0.6, bottom=below, label=part, color=COLORS[part])
        below = below + values[part]
    for row in numbers(table[table["metric"] == "compression_time_share"], "epmc").itertuples():
        for model in row.model.split(", "):
            limit = "at least" if ", " in row.model else ""  # "more than 70 %" of three networks
            mark(axes, model, Stated(row.paper_value, row.standing), limit)
    axes.set_ylabel("share of a step's time (%)")
    axes.grid(visible=False, axis="x")
    return finish(figure, "EPMC, Figure 2: time of the serial baseline by what it does")
