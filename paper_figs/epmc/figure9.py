"""Figure 9: time of a step with encoded maps over the baseline's, on both of the paper's cards."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.epmc.colors import COLORS
from paper_figs.marks import finish, mark_rows, numbers
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, in_order, read

SERIAL = "CSR-cuSPARSE in series"


def draw() -> Figure:
    table = read("epmc", "figure9")
    shown = table[table["item"] == "Figure 9"]
    papers = numbers(table[table["metric"] == "ETR"], "epmc")
    papers = papers.assign(system=papers["system"].map(lambda name: "EPMC" if name.startswith("EPMC") else SERIAL))
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True, layout="constrained")
    for axes, device in zip(panels, in_order(shown["device"]), strict=True):
        values = by_system(shown[shown["device"] == device])
        places = bar_groups(axes, values, COLORS)
        mark_rows(axes, places, papers)
        axes.axhline(1, **REFERENCE_LINE, label="PyTorch baseline")
        axes.set_title(device)
    panels[0].set_ylabel("execution time ratio (PyTorch baseline = 1)")
    return finish(figure, "EPMC, Figure 9: execution time ratio")
