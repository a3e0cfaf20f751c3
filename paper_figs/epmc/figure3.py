"""Figure 3: how much of the GPU is used in a step when cuSPARSE converts every map of VGG-16 between the layers."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.marks import finish, level, stated
from paper_figs.style import read


def draw() -> Figure:
    table = read("epmc", "figure3")
    shown = table[table["item"] == "Figure 3"]
    idle = stated(table, "epmc", metric="gpu_idle_share")
    batches = [f"{int(batch)}" for batch in shown["batch_size"]]
    converting = shown["simulated_value"]
    used = converting * (100 - idle.value) / 100
    figure, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    axes.bar(batches, 100 - converting, 0.6, color=COLORS["convolution"], label="used by the layers")
    axes.bar(
        batches, used, 0.6, bottom=100 - converting, color=COLORS["compression"],
        label="used by conversions",
    )  # fmt: skip
    level(axes, idle.changed(lambda percent: 100 - percent))
    for place, share in enumerate(converting):  # what is ours alone: the split of it rests on the paper
        axes.annotate(f"converts for\n{share:.1f} % of the time", (place, 97), ha="center", va="top", fontsize=8)
    axes.set_ylim(0, 100)
    axes.set_xlabel("batch size of VGG-16 (assumed)")
    axes.set_ylabel("utilisation of the GPU over a step (%)")
    axes.grid(visible=False, axis="x")
    return finish(figure, "EPMC, Figure 3: utilisation of the GPU by CSR-cuSPARSE")
