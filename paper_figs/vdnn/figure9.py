"""Figure 9: maximum and average memory of each policy."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark, stated
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, label_bars, read
from paper_figs.vdnn.colors import COLORS

CAPACITY_GB = 12


def draw() -> Figure:
    table = read("vdnn", "figure9")
    shown = table[table["item"] == "Figure 9"]
    figure, (maximum, average) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    values = by_system(shown[shown["metric"] == "max_memory"])
    places = bar_groups(maximum, values, COLORS)
    maximum.axhline(CAPACITY_GB, **REFERENCE_LINE, label="memory of a K40")
    for model, system, claim in (
        ("VGG-16 (128)", "base(p)", {"batch_size": 128, "metric": "memory_usage"}),
        ("VGG-16 (256)", "base(p)", {"batch_size": 256, "metric": "memory_usage"}),
        ("VGG-16 (128)", "vDNN_all(m)", {"batch_size": 128, "metric": "max_memory"}),
    ):
        mark(maximum, places.loc[model, system], stated(table, "vdnn", **claim))
    label_bars(maximum, places, values, lambda held_gb: "*" if held_gb > CAPACITY_GB else "")
    maximum.set_ylabel("maximum (GB); * does not fit")
    bar_groups(average, by_system(shown[shown["metric"] == "avg_memory"]), COLORS)
    average.set_ylabel("average, without classifier (GB)")
    return finish(figure, "vDNN, Figure 9: memory of each policy, K40")
