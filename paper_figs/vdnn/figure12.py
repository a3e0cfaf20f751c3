"""Figure 12: performance of each policy, feature extraction alone, over the baseline that has the memory."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark, stated
from paper_figs.style import REFERENCE_LINE, bar_groups, by_system, mark_out_of_memory, read
from paper_figs.vdnn.colors import COLORS


def draw() -> Figure:
    table = read("vdnn", "figure12")
    shown = table[table["item"] == "Figure 12"]
    values = by_system(shown)
    values = values[["base(m)", *(name for name in values.columns if name != "base(m)")]]
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    places = bar_groups(axes, values, COLORS)
    mark_out_of_memory(axes, places, shown, COLORS)
    for model, system, claim in (
        ("VGG-16 (128)", "vDNN_all(m)", {"batch_size": 128, "metric": "performance_loss"}),
        ("VGG-16 (256)", "vDNN_dyn", {"batch_size": 256, "metric": "performance_loss"}),
    ):
        number = stated(table, "vdnn", **claim)
        mark(axes, places.loc[model, system], number.changed(lambda loss: 100 - loss))
    axes.axhline(100, **REFERENCE_LINE, label="base(p); where it does not fit, its oracle")
    axes.set_ylabel("performance of feature extraction\n(base(p) or its oracle = 100 %)")
    return finish(figure, "vDNN, Figure 12: performance of each policy, K40")
