"""Predictions over published measurements, one picture for each data set and quantity: a dot for each row, log-log."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from paper_figs.style import REFERENCE_LINE, plain_ticks, read

FOLDER = "validation"
LARGEST_FAMILIES = 9
"""Families with a colour of their own; the others share one."""
OTHERS = "others"
UNITS = {
    "step_time_s": ("ms per step", 1e3),
    "allocated_bytes": ("GB allocated", 2**-30),
    "reserved_bytes": ("GB reserved", 2**-30),
    "used_bytes": ("GB in use", 2**-30),
    "largest_parameters": ("billion weights", 1e-9),
}
_FITTED = {"marker": "x", "color": "#6b7280", "s": 20, "linewidth": 1.0, "zorder": 4}
_BAND = 1.25
"""Ratio up to which the band around the diagonal reaches."""


def pictures(results: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each picture, its data set and its quantity."""
    for path in sorted((results / FOLDER).glob("*.csv")):
        if path.stem != "summary":
            table = pd.read_csv(path)
            quantities = dict.fromkeys(table["quantity"])
            compared = set(table["quantity"][_compared(table)])
            for quantity in (each for each in quantities if each in compared):
                yield path.stem if len(quantities) == 1 else f"{path.stem}_{quantity}", path.stem, quantity


def _compared(table: pd.DataFrame) -> pd.Series:
    """Return for each row whether it was both measured and predicted."""
    return table["measured_value"].notna() & table["simulated_value"].notna()


def draw(dataset: str, quantity: str) -> Figure:
    """Draw one data set."""
    table = read(FOLDER, dataset)
    table = table[(table["quantity"] == quantity) & _compared(table)]
    unit, factor = UNITS[quantity]
    measured, simulated = table["measured_value"] * factor, table["simulated_value"] * factor
    by_device = table["device"].nunique() > 1
    groups = table["device"] if by_device else _families(table["family"])
    figure, axes = plt.subplots(figsize=(4.8, 4.6), layout="constrained")
    ends = np.array([min(measured.min(), simulated.min()) / 1.3, max(measured.max(), simulated.max()) * 1.3])
    axes.fill_between(ends, ends / _BAND, ends * _BAND, color="#e5e7eb", linewidth=0, label="within 25 %")
    axes.plot(ends, ends, **REFERENCE_LINE)
    judged = table["fitted"] != "yes"
    colors = plt.get_cmap("tab10").colors
    names = sorted(set(groups) - {OTHERS}) + [OTHERS] * (OTHERS in set(groups))
    for position, name in enumerate(names):
        chosen = judged & (groups == name)
        color = "#9ca3af" if name == OTHERS else colors[position % len(colors)]
        axes.scatter(
            measured[chosen], simulated[chosen], s=14, alpha=0.75, color=color, linewidth=0, label=name, zorder=3
        )
    if not judged.all():
        axes.scatter(measured[~judged], simulated[~judged], **_FITTED, label="fitted on")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis, *ends)
    axes.set(xlabel=f"measured, {unit}", ylabel=f"simulated, {unit}")
    axes.set_title(dataset)
    axes.legend(fontsize=7, frameon=False, loc="upper left")
    return figure


def _families(families: pd.Series) -> pd.Series:
    largest = families.value_counts().index[:LARGEST_FAMILIES]
    return families.where(families.isin(largest), OTHERS)
