"""Shared style of the figures, and how they are saved: the same bytes from the same results.

Reads results/ and conf/ only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import yaml
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends import backend_pdf
from matplotlib.figure import Figure
from matplotlib.path import Path as MarkPath
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullLocator, StrMethodFormatter
from matplotlib.transforms import IdentityTransform, Transform

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"

Colors = Mapping[str, str]
"""Colours by the label of a bar or line."""

REFERENCE_LINE = {"color": "#374151", "linewidth": 0.8, "linestyle": "--"}
"""Line of a value to compare with: a baseline, or a device's memory."""

_LEGIBLE: dict[str, Any] = {"path_effects": [withStroke(linewidth=2, foreground="white")], "zorder": 6}
"""Look of a number above a bar: before marks and lines, with a white edge."""

_LEAST_TICKS = 3
"""On an axis, before numbers between them are labelled too."""
PDF_DIGITS = 4
"""After the point, of a number in a PDF; most are in points of 1/72 inch."""


def use_style() -> None:
    """Set fonts, lines and sizes for every figure."""
    sns.set_theme(context="paper", style="whitegrid", font="DejaVu Sans", font_scale=1.05)
    mpl.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 11, "figure.dpi": 150})
    mpl.rcParams.update({"axes.titlelocation": "left", "grid.color": "#e5e7eb", "svg.hashsalt": "membench"})


def read(paper: str, name: str) -> pd.DataFrame:
    """Read one table of results."""
    return pd.read_csv(RESULTS / paper / f"{name}.csv")


def device_memory_mb(paper: str, device: str) -> float:
    """Return the memory of a device by the paper's name for it, from ``conf/device``, in MB of 1024 x 1024 bytes."""
    names = yaml.safe_load((ROOT / "experiments" / paper / "paper.yaml").read_text())["devices"]
    described = yaml.safe_load((ROOT / "conf" / "device" / f"{names[device]}.yaml").read_text())
    memory_mb: float = described["memory_bytes"] / 2**20
    return memory_mb


def in_order(values: pd.Series) -> list[str]:
    """Return the different values of a column in the order of the table."""
    return list(dict.fromkeys(values))


def bar_groups(axes: Axes, values: pd.DataFrame, colors: Colors) -> pd.DataFrame:
    """Draw a bar for each row (a group on the axis) and column of a table, and return their positions on the axis."""
    width = 0.8 / len(values.columns)
    places = pd.DataFrame(index=values.index, columns=values.columns, dtype=float)
    for position, name in enumerate(values.columns):
        offset = (position - (len(values.columns) - 1) / 2) * width
        places[name] = [number + offset for number in range(len(values))]
        axes.bar(places[name], values[name], width * 0.92, label=name, color=colors[name])
    axes.set_xticks(range(len(values)), list(values.index))
    axes.grid(visible=False, axis="x")
    return places


def with_batch_sizes(axes: Axes, frame: pd.DataFrame) -> None:
    """Name each model of `bar_groups` with its batch size in brackets, as the papers do."""
    batches = frame.drop_duplicates("model")
    sizes = batches["batch_size"].fillna(batches["our_batch_size"])
    names = [f"{model}\n({size:.0f})" for model, size in zip(batches["model"], sizes, strict=True)]
    axes.set_xticks(range(len(names)), names)


def by_system(frame: pd.DataFrame) -> pd.DataFrame:
    """Return our values, a row per model and a column per system, in the order of the table."""
    values = frame.pivot_table(index="model", columns="system", values="simulated_value", sort=False)
    return values.reindex(index=in_order(frame["model"]), columns=in_order(frame["system"]))


def with_mean(values: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row for the mean of all others."""
    return pd.concat([values, values.mean().rename("mean").to_frame().T])


def label_bars(axes: Axes, places: pd.DataFrame, values: pd.DataFrame, spell: Callable[[float], str]) -> None:
    """Write `spell(value)` above each bar of `bar_groups`."""
    for system in values:
        for place, value in zip(places[system], values[system], strict=True):
            axes.annotate(
                spell(value), (place, value), xytext=(0, 2), textcoords="offset points", ha="center",
                fontsize=7, color="#374151", **_LEGIBLE,
            )  # fmt: skip


def mark_out_of_memory(axes: Axes, places: pd.DataFrame, frame: pd.DataFrame, colors: Colors) -> None:
    """Write "out of memory" in place of each bar that is missing because the step does not fit.

    Args:
        places: on the axis, a row per model and a column per system.
        frame: rows of a table of results.
    """
    for row in frame[frame["outcome"] == "out_of_memory"].itertuples():
        axes.text(
            places.loc[row.model, row.system], 0.02, "out of memory", transform=axes.get_xaxis_transform(),
            rotation=90, ha="center", va="bottom", fontsize=6.5, color=colors[row.system],
        )  # fmt: skip


def thousands(axis: Axis) -> None:
    """Separate the thousands of an axis's numbers, as `log_axis` does."""
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def grouped_bars(axes: Axes, frame: pd.DataFrame, colors: Colors, *, unit: str) -> pd.DataFrame:
    """Draw a bar per model and system, with the saving over the first system above each other bar.

    Returns:
        Their positions on the axis, as `bar_groups` does.
    """
    values = by_system(frame)
    places = bar_groups(axes, values, colors)
    for system in values.columns[1:]:
        for place, model in zip(places[system], values.index, strict=True):
            saved = 1 - values.loc[model, system] / values.loc[model, values.columns[0]]
            label = f"{-100 * saved:+.0f}%" if abs(saved) < 0.98 else f"{-100 * saved:+.1f}%"
            axes.annotate(
                label, (place, values.loc[model, system]), xytext=(0, 2), textcoords="offset points",
                ha="center", va="bottom", fontsize=6.2, rotation=90, color="#374151", **_LEGIBLE,
            )  # fmt: skip
    axes.set_ylabel(f"maps and gradients ({unit})")
    return places


def share_axis(axes: Axes, label: str) -> Axes:
    """Return a second vertical axis, from 0 to 100 %, on the right."""
    share = axes.twinx()
    share.spines["right"].set_visible(True)
    share.grid(visible=False)
    axes.grid(visible=False, axis="x")
    share.set_ylim(0, 105)
    share.set_yticks(range(0, 101, 20))
    share.set_ylabel(label)
    return share


def log_axis(axes: Axes, ticks: Sequence[float]) -> None:
    """Make the vertical axis logarithmic with plain numbers on it."""
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()


def plain_ticks(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis with plain numbers: powers of ten, or where these are few, numbers between them."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))))
    for steps in ("1", "13", "125", "12345678"):
        ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
        shown = [tick for tick in ticks if low <= tick <= high]
        if len(shown) >= _LEAST_TICKS:
            break
    axis.set_ticks(shown, [f"{tick:,.9g}" for tick in shown])
    axis.set_minor_locator(NullLocator())


def save(figure: Figure, path: Path) -> None:
    """Save a figure as ``.png`` and ``.pdf`` under a path's name, without dates or versions in them."""
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None})
    with _rounded_numbers():
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None, "Producer": None, "Creator": None})
    plt.close(figure)


@contextmanager
def _rounded_numbers() -> Iterator[None]:
    """Have matplotlib write `PDF_DIGITS` of each number into a PDF, in place of ten, and of six in a line.

    NumPy's logarithms differ in the last digit with the vector instructions of the processor, and so do the places of
    dots on logarithmic axes.
    """
    of_number, of_path = backend_pdf.pdfRepr, backend_pdf.PdfFile.pathOperations

    def number(value: object) -> bytes:
        return of_number(round(float(value), PDF_DIGITS) if isinstance(value, float | np.floating) else value)

    def line(path: MarkPath, transform: Transform, *arguments: object, **options: object) -> list[object]:
        placed = path.transformed(transform)
        rounded = MarkPath(np.round(placed.vertices, PDF_DIGITS), placed.codes)
        return of_path(rounded, IdentityTransform(), *arguments, **options)

    with (
        patch.object(backend_pdf, "pdfRepr", number),
        patch.object(backend_pdf.PdfFile, "pathOperations", staticmethod(line)),
    ):
        yield


def summary(figure: Figure) -> str:
    """Return a figure's title, and what its axes show over what."""
    named = [*(text.get_text() for text in figure.texts), *(axes.get_title(loc="left") for axes in figure.axes)]
    titles = [figure.get_suptitle(), *named]
    title = next((title for title in titles if title), "without a title")
    shown = dict.fromkeys(axes.get_ylabel() for axes in figure.axes if axes.get_ylabel())
    over = dict.fromkeys(axes.get_xlabel() for axes in figure.axes if axes.get_xlabel())
    parts = [title, *shown, *(f"over {label}" for label in over)]
    return "; ".join(" ".join(part.split()) for part in parts)
