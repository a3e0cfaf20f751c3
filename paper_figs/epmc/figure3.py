"""Figure 3: how much of the GPU is used in a step when cuSPARSE converts every map of VGG-16 between the layers."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.style import read


def draw() -> Figure:
    table = read("epmc", "figure3")
    shown = table[table["item"] == "Figure 3"]
    idle = table[table["metric"] == "gpu_idle_share"]["paper_value"].iloc[0]
    batches = [f"{int(batch)}" for batch in shown["batch_size"]]
    converting = shown["simulated_value"]
    used = converting * (100 - idle) / 100
    figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    axes.bar(batches, 100 - converting, 0.6, color=COLORS["convolution"], label="used by the layers")
    axes.bar(batches, used, 0.6, bottom=100 - converting, color=COLORS["compression"], label="used while converting")
    idle_label = f"idle while converting: {idle:.0f} % of that time, stated in the paper"
    axes.bar(batches, converting - used, 0.6, bottom=100 - converting + used, color="#e5e7eb", label=idle_label)
    for place, share in enumerate(converting):  # what is ours alone: the split of it rests on the paper
        text = f"{share:.0f} %\nconverting"
        axes.annotate(text, (place, 97), ha="center", va="top")
    axes.set_ylim(0, 100)
    axes.set_xlabel("batch size of VGG-16 (assumed)")
    axes.set_ylabel("GPU over a step (%)")
    axes.grid(visible=False, axis="x")
    figure.legend(frameon=False, ncols=2, loc="outside lower center")
    axes.set_title("EPMC, Figure 3: use of the GPU by the serial baseline", weight="bold")
    return figure
