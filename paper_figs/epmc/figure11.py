"""Figure 11: how much faster seven streams convert a map than one conversion by cuSPARSE."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.marks import band, finish, stated
from paper_figs.style import read


def draw() -> Figure:
    table = read("epmc", "figure11")
    shown = table[(table["item"] == "Figure 11") & (table["system"] == "PipeCompress (7)")]
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    volumes = [f"{int(elements):,}" for elements in shown["batch_size"]]
    axes.bar(volumes, shown["simulated_value"], 0.55, color=COLORS["EPMC"], label="PipeCompress, 7 streams")
    band(axes, *(stated(table, "epmc", metric=f"speedup_max_{end}") for end in ("low", "high")))
    axes.set_xlabel("elements, half of them zero")
    axes.set_ylabel("times as fast as CSR-cuSPARSE")
    axes.grid(visible=False, axis="x")
    return finish(figure, "EPMC, Figure 11: speed of PipeCompress")
