"""Figure 12: encoding and a ReLU at the same time, over one after the other."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.marks import finish, level, stated
from paper_figs.style import REFERENCE_LINE, read


def draw() -> Figure:
    table = read("epmc", "figure12")
    shown = table[table["item"] == "Figure 12"]
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    volumes = [f"{int(elements):,}" for elements in shown["batch_size"]]
    axes.bar(
        volumes, shown["simulated_value"], 0.55, color=COLORS["EPMC"], label="PipeCompress, 7 streams, beside ReLU"
    )
    level(axes, stated(table, "epmc", metric="ETR"))
    axes.axhline(1, **REFERENCE_LINE, label="one after the other")
    axes.set_xlabel("input volume (elements, half of them zero)")
    axes.set_ylabel("execution time ratio\n(one after the other = 1)")
    axes.grid(visible=False, axis="x")
    return finish(figure, "EPMC, Figure 12: PipeCompress beside a ReLU")
