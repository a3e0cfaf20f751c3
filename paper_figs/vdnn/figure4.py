"""Figure 4: memory of each layer of VGG-16 in the forward pass: its maps and workspace, and its weights."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import finish
from paper_figs.style import read, thousands
from paper_figs.vdnn.colors import COLORS


def draw() -> Figure:
    table = read("vdnn", "figure4")
    shown = table[table["item"] == "Figure 4"].copy()
    shown[["metric", "layer"]] = shown["metric"].str.split(":", expand=True)
    values = shown.pivot_table(index="layer", columns="metric", values="simulated_value", sort=False)
    convolutions = sum(layer.startswith("features") for layer in values.index)
    names = [f"conv {n + 1}" if n < convolutions else f"FC {n - convolutions + 1}" for n in range(len(values))]
    figure, (maps, weights) = plt.subplots(2, 1, figsize=(8, 4.6), sharex=True, layout="constrained")
    maps.bar(
        names, values["layer_map_bytes"], 0.7, color=COLORS["feature maps"], label="workspace, input and output maps"
    )
    thousands(maps.yaxis)
    maps.set_ylabel("workspace\nand maps (MB)")
    weights.bar(names, values["layer_weight_bytes"], 0.7, color=COLORS["weights"], label="weights")
    weights.set_ylabel("weights (MB)")
    for axes in (maps, weights):
        axes.grid(visible=False, axis="x")
    weights.tick_params("x", rotation=60)
    return finish(figure, "vDNN, Figure 4: what each layer of VGG-16 (256) needs, forward")
