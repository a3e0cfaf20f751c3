"""Figure 10: what each policy offloads to pinned host memory."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark_rows, numbers
from paper_figs.style import bar_groups, by_system, mark_out_of_memory, read
from paper_figs.vdnn.colors import COLORS


def draw() -> Figure:
    table = read("vdnn", "figure10")
    shown = table[table["item"] == "Figure 10"]
    values = by_system(shown)
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    mark_out_of_memory(axes, places, shown, COLORS)
    paper = numbers(table[table["metric"] == "offloaded_size"], "vdnn")
    mark_rows(axes, places, paper.assign(model="VGG-16 (256)", system="vDNN_all(m)"))
    axes.set_ylabel("offloaded in a step (GB)")
    return finish(figure, "vDNN, Figure 10: memory offloaded")
