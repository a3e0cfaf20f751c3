"""Figure 12: encoding and a ReLU at the same time, over one after the other."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.style import REFERENCE_LINE, read


def draw() -> Figure:
    table = read("epmc", "figure12")
    shown = table[table["item"] == "Figure 12"]
    stated = table[(table["metric"] == "ETR") & table["paper_value"].notna()]["paper_value"].iloc[0]
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    volumes = [f"{int(elements):,}" for elements in shown["batch_size"]]
    axes.bar(
        volumes, shown["simulated_value"], 0.55, color=COLORS["EPMC"], label="PipeCompress, 7 streams, beside ReLU"
    )
    axes.axhline(stated, color="#d1495b", linewidth=1.4, label="stated in the paper")
    axes.axhline(1, **REFERENCE_LINE, label="one after the other")
    axes.set_xlabel("elements, half of them zero")
    axes.set_ylabel("ratio of times")
    axes.grid(visible=False, axis="x")
    figure.legend(frameon=False, ncols=2, loc="outside lower center")
    axes.set_title("EPMC, Figure 12: PipeCompress beside a ReLU", weight="bold")
    return figure
