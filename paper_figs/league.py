"""The league: errors of peers beside ours, a line for each comparison of results/league/summary.csv."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from paper_figs.style import read

FOLDER = "league"
_OURS, _PEER = "#1f77b4", "#6b7280"


def draw() -> Figure:
    """Draw it."""
    table = read(FOLDER, "summary")
    places = np.arange(len(table))[::-1]
    figure, axes = plt.subplots(figsize=(6.4, 0.9 + 0.36 * len(table)), layout="constrained")
    ours, peers = 100 * table["ours"], 100 * table["peers"]
    axes.hlines(places, np.minimum(ours, peers), np.maximum(ours, peers), color="#d1d5db", linewidth=1.0, zorder=1)
    bounds = np.abs(np.array([100 * table["ours_low"], 100 * table["ours_high"]]) - ours.to_numpy())
    axes.errorbar(ours, places, xerr=bounds, fmt="o", color=_OURS, markersize=5, capsize=2, label="membench", zorder=3)
    axes.plot(peers, places, "D", color=_PEER, markersize=5, label="the peer", zorder=2)
    same = table["same_rows"].map({"yes": "the same rows", "no": "all of its rows"})
    axes.set_yticks(
        places,
        [
            f"{row.peer}: {row.dataset}, {row.statistic} ({of})"
            for row, of in zip(table.itertuples(), same, strict=True)
        ],
    )
    axes.set(xscale="log", xlabel="absolute relative error, %")
    axes.xaxis.set_major_locator(LogLocator(subs=(1,)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return figure
