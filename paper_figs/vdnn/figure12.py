"""Figure 12: performance of each policy, feature extraction alone, over the baseline that has the memory."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import PAPER_LABEL, PAPER_MARKER, REFERENCE_LINE, bar_groups, by_system, mark_out_of_memory, read
from paper_figs.vdnn.colors import COLORS


def draw() -> Figure:
    table = read("vdnn", "figure12")
    shown = table[table["item"] == "Figure 12"]
    values = by_system(shown)
    values = values[["base(m)", *(name for name in values.columns if name != "base(m)")]]
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    mark_out_of_memory(axes, places, shown, COLORS)
    losses = table[table["metric"] == "performance_loss"].set_index("batch_size")["paper_value"]
    for batch_size, system in ((128, "vDNN_all(m)"), (256, "vDNN_dyn")):
        loss = losses.loc[[batch_size]].iloc[0]
        place = places.loc[f"VGG-16 ({batch_size})", system]
        axes.scatter([place], [100 - loss], **PAPER_MARKER)
    axes.scatter([], [], **PAPER_MARKER, label=PAPER_LABEL)
    axes.axhline(100, **REFERENCE_LINE)
    axes.set_ylabel("performance (base(p) = 100 %)")
    figure.legend(frameon=False, ncols=4, loc="outside lower center")
    axes.set_title(
        "vDNN, Figure 12: performance of each policy; where base(p) does not fit, over its oracle", weight="bold"
    )
    return figure
