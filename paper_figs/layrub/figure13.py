"""Figure 13: performance of each system over its own baseline."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs.layrub.colors import COLORS
from paper_figs.marks import finish, mark_rows, numbers
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, read, with_batch_sizes


def draw() -> Figure:
    table = read("layrub", "figure13")
    shown = table[table["item"] == "Figure 13"]
    values = by_system(shown) / 100
    figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    papers = numbers(table[table["metric"] == "normalized_performance"], "layrub")
    papers = papers.assign(paper_value=papers["paper_value"] / 100)
    mark_rows(axes, places, papers, {"vDNN(m)": "at most", "vDNN(p)": "at most"})
    _mark_out_of_memory_in_paper(axes, places)
    axes.axhline(1, **REFERENCE_LINE, label="Caffe, or another system's own baseline")
    with_batch_sizes(axes, shown)
    axes.set_ylabel("performance (own baseline = 1)")
    return finish(figure, "Layrub, Figure 13: normalised performance on well-known models, K40M")


def _mark_out_of_memory_in_paper(axes: Axes, places: pd.DataFrame) -> None:
    """Write into GeePS's bars that they are missing in the paper's figure: its GeePS ran out of memory."""
    board = read("layrub", "scoreboard")
    rows = board[(board["system"] == "GeePS") & board["reason"].str.startswith("out of memory in the paper", na=False)]
    for model in rows["model"]:
        axes.text(
            places.loc[model, "GeePS"], 0.03, "out of memory in the paper", rotation=90, ha="center", va="bottom",
            fontsize=6.5,
        )  # fmt: skip
