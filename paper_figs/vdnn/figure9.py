"""Figure 9: maximum and average memory of each policy."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import PAPER_LABEL, PAPER_MARKER, REFERENCE_LINE, bar_groups, by_system, label_bars, read
from paper_figs.vdnn.colors import COLORS

CAPACITY_GB = 12


def draw() -> Figure:
    table = read("vdnn", "figure9")
    shown = table[table["item"] == "Figure 9"]
    figure, (maximum, average) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    values = by_system(shown[shown["metric"] == "max_memory"])
    places = bar_groups(maximum, values, COLORS)
    maximum.axhline(CAPACITY_GB, **REFERENCE_LINE)
    maximum.text(-0.45, CAPACITY_GB + 0.4, "memory of a K40", fontsize=7.5, color="#374151")
    for model, system, claim in (
        ("VGG-16 (128)", "base(p)", (128, "memory_usage")),
        ("VGG-16 (256)", "base(p)", (256, "memory_usage")),
        ("VGG-16 (128)", "vDNN_all(m)", (128, "max_memory")),
    ):
        rows = table[(table["batch_size"] == claim[0]) & (table["metric"] == claim[1]) & table["paper_value"].notna()]
        place = places.loc[model, system]
        maximum.scatter([place], rows["paper_value"].iloc[:1], **PAPER_MARKER)
    maximum.scatter([], [], **PAPER_MARKER, label=PAPER_LABEL)
    label_bars(maximum, places, values, lambda held_gb: "*" if held_gb > CAPACITY_GB else "")
    maximum.set_ylabel("maximum (GB); * does not fit")
    bar_groups(average, by_system(shown[shown["metric"] == "avg_memory"]), COLORS)
    average.set_ylabel("average, without classifier (GB)")
    handles, labels = maximum.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=4, loc="outside lower center")
    maximum.set_title("vDNN, Figure 9: memory of each policy, K40", weight="bold")
    return figure
