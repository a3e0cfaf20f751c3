"""Figure 12: time of one batch under different budgets, over the ideal case."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish
from paper_figs.modnn.colors import COLORS
from paper_figs.style import REFERENCE_LINE, in_order, read


def draw() -> Figure:
    table = read("modnn", "figure12")
    shown = table[table["item"] == "Figure 12"].copy()
    shown["budget_gb"] = shown["metric"].str.extract(r":(\d+) GB", expand=False).astype(float)
    figure, panels = plt.subplots(2, 3, figsize=(9, 5), sharex=True, sharey=True, layout="constrained")
    for axes, model in zip(panels.flat, in_order(shown["model"]), strict=True):
        for system, curve in shown[shown["model"] == model].groupby("system", sort=False):
            axes.plot(
                curve["budget_gb"], curve["simulated_value"], marker="o", markersize=3.5,
                color=COLORS[system], label=system if axes is panels.flat[0] else None,
            )  # fmt: skip
        axes.axhline(1, **REFERENCE_LINE, label="ideal case")
        axes.set_title(model)
    for axes in panels[-1]:
        axes.set_xlabel("budget (GB)")
    for axes in panels[:, 0]:
        axes.set_ylabel("time (ideal case = 1)")
    return finish(figure, "moDNN, Figure 12: time of one batch under different budgets", ours="Lines")
