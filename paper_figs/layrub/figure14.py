"""Figure 14: time of a step under Layrub and under memonger, on top of each one's own baseline."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.marks import finish, mark_rows, numbers
from paper_figs.style import bar_groups, by_system, read, with_batch_sizes

BASELINE = "common baseline (Caffe, MXNet)"
OVERHEADS = {"Layrub-hybrid": "Layrub: copies that are not hidden", "MXNet-memonger": "MXNet-memonger: recomputation"}


def draw() -> Figure:
    table = read("layrub", "figure14")
    shown = table[table["item"] == "Figure 14"]
    values = by_system(shown)
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    places = bar_groups(axes, values.rename(columns=OVERHEADS), {new: COLORS[old] for old, new in OVERHEADS.items()})
    width = axes.patches[0].get_width()
    for number, system in enumerate(values.columns):
        axes.bar(places[OVERHEADS[system]], 1, width, color=COLORS["baseline"], label=BASELINE if number == 0 else None)
    overheads = numbers(read("layrub", "table5"), "layrub")
    overheads = overheads[overheads["metric"] == "time_overhead_vs_own_baseline"]
    times = overheads.assign(paper_value=1 + overheads["paper_value"] / 100, system=overheads["system"].map(OVERHEADS))
    mark_rows(axes, places, times)
    with_batch_sizes(axes, shown)
    axes.set_ylabel("execution time (own baseline = 1)")
    return finish(figure, "Layrub, Figure 14: normalised execution time of Layrub and MXNet-memonger, K40M")
