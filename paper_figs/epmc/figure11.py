"""Figure 11: how much faster seven streams convert a map than one conversion by cuSPARSE."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.style import read


def draw() -> Figure:
    table = read("epmc", "figure11")
    shown = table[(table["item"] == "Figure 11") & (table["system"] == "PipeCompress (7)")]
    stated = table[table["metric"].str.startswith("speedup_max")]["paper_value"]
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    volumes = [f"{int(elements):,}" for elements in shown["batch_size"]]
    axes.bar(volumes, shown["simulated_value"], 0.55, color=COLORS["EPMC"], label="PipeCompress, 7 streams")
    label = "the largest stated in the paper: 4.5 to 5"
    axes.axhspan(stated.min(), stated.max(), color="#d1495b", alpha=0.5, linewidth=0, zorder=3, label=label)
    axes.set_xlabel("elements, half of them zero")
    axes.set_ylabel("times as fast as CSR-cuSPARSE")
    axes.grid(visible=False, axis="x")
    figure.legend(frameon=False, ncols=2, loc="outside lower center")
    axes.set_title("EPMC, Figure 11: speed of PipeCompress", weight="bold")
    return figure
