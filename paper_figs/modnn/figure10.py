"""Figure 10: time of one batch within 12 GB."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark_means, stated
from paper_figs.modnn.colors import COLORS
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, read, with_mean


def draw() -> Figure:
    table = read("modnn", "figure10")
    shown = table[(table["item"] == "Figure 10") & (table["metric"] == "training_time")]
    times = by_system(shown)
    values = with_mean(times[["moDNN", "vDNN"]].div(times["ideal case"], axis=0))
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    papers = {
        name: stated(table, "modnn", metric="time_overhead_avg", system=f"{name} vs ideal case")
        for name in values.columns
    }
    mark_means(
        axes, places, {name: number.changed(lambda percent: 1 + percent / 100) for name, number in papers.items()}
    )
    axes.axhline(1, **REFERENCE_LINE, label="ideal case")
    axes.set_ylabel("time of one batch (ideal case = 1)")
    return finish(figure, "moDNN, Figure 10: time of one batch, K40 with 12 GB")
