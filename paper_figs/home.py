"""The picture of the site's home: the least memory of each method that costs little time, in light and in dark.

As large as a phone shows it; each variant has its own background, so that it can be read on any page.
"""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.style import read

NETWORK, CARD = "GPT-2 medium, batch 2", "RTX 3090"
_TABLE = "gpt2_medium_rtx3090"
_MOST_TIME = 1.1
"""Of eager execution's."""
COLORS = {
    "light": {"back": "#ffffff", "text": "#1f2937", "bar": "#4051b5", "eager": "#9ca3af"},
    "dark": {"back": "#1e2129", "text": "#e5e7eb", "bar": "#8c9eff", "eager": "#6b7280"},
}
_METHODS = ("eager", "rotor", "capuchin", "dtr", "pofo", "joint")


def draw(scheme: str) -> Figure:
    """Draw it."""
    table, colors = read("frontiers", _TABLE), COLORS[scheme]
    eager = table[table["strategy"] == "eager"].iloc[0]
    quick = table[(table["fits"] == "yes") & (table["step_time_s"] <= _MOST_TIME * eager["step_time_s"])]
    least_gb = quick.groupby("strategy")["peak_bytes"].min()[list(_METHODS)] / 2**30
    figure, axes = plt.subplots(figsize=(4.0, 3.0), layout="constrained", facecolor=colors["back"])
    axes.set_facecolor(colors["back"])
    bars = axes.barh(
        least_gb.index, least_gb, color=[colors["eager"], *[colors["bar"]] * (len(_METHODS) - 1)], linewidth=0
    )
    axes.bar_label(bars, [f"{size:.1f} GB" for size in least_gb], padding=4, color=colors["text"], fontsize=11)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * least_gb.max())
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(labelsize=11, labelcolor=colors["text"])
    figure.suptitle(
        f"{NETWORK}, on an {CARD}:\nleast memory at up to {_MOST_TIME - 1:.0%} more time, simulated",
        x=0.02, ha="left", fontsize=11, color=colors["text"],
    )  # fmt: skip
    return figure
