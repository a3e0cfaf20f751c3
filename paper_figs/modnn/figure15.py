"""Figure 15: power of ResNet-34 under different budgets."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark, stated
from paper_figs.modnn.colors import COLORS
from paper_figs.style import REFERENCE_LINE, read

STYLES = {"average_power": "-", "maximum_power": ":"}
JUDGED_GB = (5, 6)
"""Budgets at which the paper states the average power."""


def draw() -> Figure:
    table = read("modnn", "figure15")
    limit_w = stated(read("modnn", "inputs"), "modnn", metric="tdp").value
    shown = table[table["item"] == "Figure 15"].copy()
    shown[["quantity", "budget"]] = shown["metric"].str.extract(r"([a-z_]+):?([\d.]+)?")
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for quantity, curve in shown[shown["system"] == "moDNN"].groupby("quantity", sort=False):
        axes.plot(
            curve["budget"].astype(float), curve["simulated_value"] / limit_w, marker="o",
            color=COLORS["moDNN"], linestyle=STYLES[quantity], label=f"{quantity.split('_')[0]} power",
        )  # fmt: skip
    ideal = shown.loc[shown["system"] == "ideal case", "simulated_value"].iloc[0] / limit_w
    axes.axhline(ideal, color=COLORS["ideal case"], linestyle="-.", label="ideal case, average power")
    axes.axhline(1, **REFERENCE_LINE, label=f"power limit of the card, {limit_w:.0f} W")
    increase = stated(table, "modnn", metric="average_power_increase")
    for budget_gb in JUDGED_GB:
        mark(axes, budget_gb, increase.changed(lambda percent: ideal * (1 + percent / 100)), "at most")
    axes.set_ylim(0, 1.15)
    axes.set_xlabel("memory budget (GB)")
    axes.set_ylabel(f"power ({limit_w:.0f} W = 1)")
    return finish(figure, "moDNN, Figure 15: power of ResNet-34 (256), K40", ours="Lines")
