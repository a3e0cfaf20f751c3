"""Figure 3: memory of the baseline by what it holds, and the share of feature extraction."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from paper_figs.marks import finish, mark, stated
from paper_figs.style import in_order, read, share_axis
from paper_figs.vdnn.colors import COLORS

PARTS = {
    "weights": "weights",
    "feature_maps": "feature maps",
    "gradient_maps": "gradient maps",
    "workspace": "workspace",
}


def draw() -> Figure:
    table = read("vdnn", "figure3")
    shown = table[table["item"] == "Figure 3"]
    models = in_order(shown["model"])
    values = shown.pivot_table(index="model", columns="metric", values="simulated_value").loc[models]
    figure, memory = plt.subplots(figsize=(9, 4.2), layout="constrained")
    bottom = np.zeros(len(models))
    for metric, name in PARTS.items():
        memory.bar(models, values[metric], 0.6, bottom=bottom, color=COLORS[name], label=name)
        bottom += values[metric].to_numpy()
    memory.set_ylabel("memory (GB)")
    share = share_axis(memory, "share of feature extraction (%)")
    share.plot(models, values["feature_extraction"], "o-", color=COLORS["share"], label="share of feature extraction")
    for place, model in (("AlexNet", "AlexNet"), ("VGG-16 (256)", "VGG-16")):
        mark(share, place, stated(table, "vdnn", metric="feature_extraction_memory_share", model=model))
    return finish(figure, "vDNN, Figure 3: what the baseline holds, K40")
