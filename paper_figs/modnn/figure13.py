"""Figure 13: memory of each technique alone."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark_means, stated
from paper_figs.modnn.colors import COLORS
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, label_bars, log_axis, read

SYSTEMS = {
    "sub-batch size selection": "sub-batch size selection",
    "offloading and prefetching": "offload/prefetch",
    "convolution algorithm selection": "convolution algorithm selection",
}
"""Names in the paper's text by series."""


def draw() -> Figure:
    table = read("modnn", "figure13")
    values = by_system(table[table["item"] == "Figure 13"]) / 100
    sub_batch, offload, algorithm = SYSTEMS
    times_less = [sub_batch, offload]  # the paper's means are of "times less", and of the share that algorithms save
    means = values.mean().where(~values.columns.isin(times_less), 1 / (1 / values).mean())
    values = pd.concat([values, means.rename("mean").to_frame().T])
    figure, axes = plt.subplots(figsize=(8.4, 4), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    label_bars(axes, places.iloc[:-1], values.iloc[:-1], lambda share: f"{share:.2f}".removeprefix("0"))
    papers = {
        name: stated(table, "modnn", system=f"moDNN {system} only vs ideal case") for name, system in SYSTEMS.items()
    }
    mark_means(
        axes,
        places,
        {
            sub_batch: papers[sub_batch].changed(lambda times: 1 / times),
            offload: papers[offload].changed(lambda times: 1 / times),
            algorithm: papers[algorithm].changed(lambda percent: 1 - percent / 100),
        },
    )
    axes.axhline(1, **REFERENCE_LINE, label="ideal case")
    log_axis(axes, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1))
    axes.set_ylim(0.008, 1.3)
    axes.set_ylabel("memory requirement\n(ideal case = 1, log scale)")
    return finish(figure, "moDNN, Figure 13: memory requirement under each technique alone")
