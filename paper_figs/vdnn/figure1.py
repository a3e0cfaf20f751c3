"""Figure 1: memory of the baseline, and how much of it one layer uses at most."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import band, finish, mark, stated
from paper_figs.style import REFERENCE_LINE, in_order, read, share_axis
from paper_figs.vdnn.colors import COLORS


def draw() -> Figure:
    table = read("vdnn", "figure1")
    shown = table[table["item"] == "Figure 1"]
    models = in_order(shown["model"])
    values = shown.pivot_table(index="model", columns="metric", values="simulated_value").loc[models]
    figure, memory = plt.subplots(figsize=(9, 4.2), layout="constrained")
    memory.bar(models, values["memory"], 0.6, color=COLORS["base(p)"], label="memory, network-wide allocation")
    memory.axhline(12, **REFERENCE_LINE, label="memory of a K40")
    memory.set_ylabel("memory (GB)")
    for place, model in (("AlexNet", "AlexNet"), ("VGG-16 (256)", "VGG-16")):
        mark(memory, place, stated(table, "vdnn", metric="memory_usage", model=model))
    share = share_axis(memory, "largest share that one layer uses (%)")
    shares = 100 - values["unused_by_any_layer"]
    share.plot(models, shares, "o-", color=COLORS["share"], label="largest share of one layer")
    share.annotate(
        "no FFT at 256 images: its workspace\nalone exceeds the card", (len(models) - 1, shares.iloc[-1]),
        xytext=(len(models) - 1.5, 88), ha="right", fontsize=7.5,
        arrowprops={"arrowstyle": "-", "color": "#374151", "linewidth": 0.8},
    )  # fmt: skip
    used = [
        stated(table, "vdnn", metric=f"memory_unused_{end}").changed(lambda unused: 100 - unused)
        for end in ("max", "min")
    ]
    band(share, *used)
    return finish(figure, "vDNN, Figure 1: memory of the baseline, and the share of it that one layer uses, K40")
