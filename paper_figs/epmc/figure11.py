"""Figure 11: how much faster several streams convert a map than one stream does, by the volume of the map."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from paper_figs.marks import band, finish, stated
from paper_figs.style import REFERENCE_LINE, read

STYLES = {2000: ("#123c69", "o"), 8000: ("#3b82c4", "s"), 32000: ("#3f9b6c", "^"), 128000: ("#d98b2b", "D")}


def draw() -> Figure:
    table = read("epmc", "figure11")
    shown = table[table["item"] == "Figure 11"]
    streams = shown["system"].str.extract(r"\((\d+)\)")[0].astype(int)
    figure, axes = plt.subplots(figsize=(6.5, 4.4), layout="constrained")
    for volume, (color, marker) in STYLES.items():
        rows = shown["batch_size"].astype(int) == volume
        axes.plot(
            streams[rows], shown["simulated_value"][rows], marker=marker, markersize=4, color=color,
            label=f"volume {volume:,}",
        )  # fmt: skip
    band(axes, *(stated(table, "epmc", metric=f"speedup_max_{end}") for end in ("low", "high")))
    axes.axhline(1, **REFERENCE_LINE, label="CSR-cuSPARSE, one conversion at a time")
    axes.set_ylim(0, None)
    axes.set_xlabel("number of streams")
    axes.set_ylabel("speed-up (CSR-cuSPARSE = 1)")
    return finish(figure, "EPMC, Figure 11: PipeCompress against CSR-cuSPARSE", ours="Lines")
