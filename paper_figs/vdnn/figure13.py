"""Figure 13: maximum memory of VGG-16 with up to 500 more convolutions."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import Stated, finish, mark, numbers
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, log_axis, read
from paper_figs.vdnn.colors import COLORS

CAPACITY_GB = 12


def draw() -> Figure:
    table = read("vdnn", "figure13")
    values = by_system(table[(table["item"] == "Figure 13") & (table["metric"] == "max_memory")])
    figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    papers = numbers(table[table["metric"] == "max_memory"], "vdnn")
    for row in papers.itertuples():
        system = "vDNN_dyn" if row.system == "vDNN_dyn" else "base(p)"
        model = "VGG-16 (32)" if row.model == "VGG-16" else row.model
        mark(axes, places.loc[model, system], Stated(row.paper_value, row.standing))
    axes.axhline(CAPACITY_GB, **REFERENCE_LINE, label="memory of a K40")
    log_axis(axes, [2, 5, 10, 20, 50, 100])
    axes.set_ylabel("maximum memory (GB, log scale)")
    return finish(figure, "vDNN, Figure 13: very deep networks, batch 32")
