"""Figure 15: power of ResNet-34 under different budgets."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.modnn.colors import COLORS
from paper_figs.style import read, stated

STYLES = {"average_power": "-", "maximum_power": ":"}


def draw() -> Figure:
    table = read("modnn", "figure15")
    limit_w = stated(read("modnn", "inputs"), metric="tdp")
    shown = table[table["item"] == "Figure 15"].copy()
    shown[["quantity", "budget"]] = shown["metric"].str.extract(r"([a-z_]+):?([\d.]+)?")
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for quantity, curve in shown[shown["system"] == "moDNN"].groupby("quantity", sort=False):
        axes.plot(
            curve["budget"].astype(float), 100 * curve["simulated_value"] / limit_w, marker="o",
            color=COLORS["moDNN"], linestyle=STYLES[quantity], label=f"moDNN, {quantity.split('_')[0]}",
        )  # fmt: skip
    ideal = shown.loc[shown["system"] == "ideal case", "simulated_value"].iloc[0]
    axes.axhline(100 * ideal / limit_w, color=COLORS["ideal case"], linestyle="--", label="ideal case, average")
    axes.set_ylim(0, 115)
    axes.set_xlabel("budget (GB)")
    axes.set_ylabel(f"power (% of {limit_w:.0f} W)")
    figure.legend(frameon=False, ncols=3, loc="outside lower center")
    axes.set_title("moDNN, Figure 15: power of ResNet-34 (256), K40", weight="bold")
    return figure
