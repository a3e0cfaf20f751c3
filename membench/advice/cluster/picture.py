"""An advice on several GPUs as a picture: memory and speed of each combination that fits."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from membench.advice.cluster.advice import ClusterAdvice
from membench.advice.cluster.text import named
from membench.core.units import GIB
from membench.pictures.picture import styled


def draw(advice: ClusterAdvice) -> Figure:
    """Return the picture: samples of a GPU per second upwards, its memory across; the fastest ones have names."""
    with styled():
        figure = Figure(figsize=(8.0, 4.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        cluster = advice.cluster
        title = f"{advice.model} on {cluster.devices} x {advice.device}, simulated"
        figure.suptitle(title if advice.fits else f"{title}: nothing fits", x=0.01, ha="left", weight="bold")
        for number, plan in enumerate(advice.plans):
            x, y = plan.prediction.reserved_bytes / GIB, plan.samples_per_s
            axes.plot(x, y, marker="o", color="#0072b2" if number == 0 else "#5b6472", markersize=6 - (number > 0))
            if number < 5:
                axes.annotate(named(plan.combination), (x, y), xytext=(6, -3), textcoords="offset points", fontsize=7.5)
        axes.axvline(advice.free_bytes / GIB, color="#d1495b", linewidth=1, linestyle="--")
        axes.set_xlim(0, 1.35 * advice.free_bytes / GIB)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("memory that PyTorch reserves on a GPU (GB); dashed: what there is")
        axes.set_ylabel("samples per second of a GPU")
    return figure
