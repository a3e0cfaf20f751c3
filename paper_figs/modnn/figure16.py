"""Figure 16: energy of ResNet-34 under different budgets, over the ideal case."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish
from paper_figs.modnn.colors import COLORS
from paper_figs.style import read


def draw() -> Figure:
    shown = read("modnn", "figure16")
    budgets_gb = shown["metric"].str.extract(r":([\d.]+) GB", expand=False).astype(float)
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    axes.plot(budgets_gb, shown["simulated_value"], marker="o", color=COLORS["moDNN"], label="moDNN")
    axes.axhline(1, color=COLORS["ideal case"], linestyle="--", label="ideal case")
    axes.set_ylim(0, 1.1 * shown["simulated_value"].max())
    axes.set_xlabel("budget (GB)")
    axes.set_ylabel("energy (ideal case = 1)")
    return finish(figure, "moDNN, Figure 16: energy of ResNet-34 (256), K40", ours="Lines")
