"""Figure 8: how many times as large as the encoded maps those are that the baseline stores."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.marks import finish, mark, mark_means, stated
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, read, with_mean


def draw() -> Figure:
    table = read("epmc", "figure8")
    values = with_mean(by_system(table[table["item"] == "Figure 8"]))
    figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    mark(axes, places.loc["VGG-16", "EPMC"], stated(table, "epmc", metric="MFR", model="VGG-16"))
    means = {"CSR-cuSPARSE in series": "serial baseline (CSR-cuSPARSE)", "EPMC": "EPMC"}
    papers = {
        name: stated(table, "epmc", metric="MFR_avg", system=f"{system} vs Pytorch baseline")
        for name, system in means.items()
    }
    mark_means(axes, places, papers)
    axes.axhline(1, **REFERENCE_LINE, label="PyTorch baseline")
    axes.set_ylabel("memory footprint ratio\n(PyTorch baseline over this)")
    return finish(figure, "EPMC, Figure 8: stored maps over encoded maps")
