"""A paper's judged numbers over the paper's, by table and section; all papers' by standing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from paper_figs import style
from paper_figs.style import in_order, read

COLORS = {"held out": "#e69fc8", "fitted": "#5b6472", "reproduced": "#009e73", "better": "#0072b2", "worse": "#d55e00"}
"""By kind, the last on top, in colours that all can tell apart (Okabe and Ito, Color Universal Design, 2008)."""

_LEGEND = ("reproduced", "better", "worse", "fitted", "held out")
_DARK = "#374151"

WIDTH_IN = 4.8
"""Of the figure: its text can be read on a telephone's screen, about 360 px wide."""
_LEFT_IN, _RIGHT_IN = 0.8, 0.56
DOT_IN = 0.07
SMALL_DOT_IN = 0.05
MOST_LANES = 9
"""Dots above each other in a row before they overlap, in proportion: the row is a histogram then."""
OCTAVES = 2
"""The axis reaches from 1/4 to 4; what is beyond stands in a margin at either end."""
LESS, MORE, NO_RATIO = -OCTAVES - 0.6, OCTAVES + 0.6, OCTAVES + 1.4
MARGIN_OCTAVES = 0.3
"""Half of a margin's width."""
RIGHT_END = NO_RATIO + MARGIN_OCTAVES + 0.1


@dataclass(frozen=True)
class DotRow:
    """A row of dots, from bottom to top of its axes.

    Attributes:
        numbers: rows of `judged_numbers`, with `octave` and `lane`.
        lanes: count of lanes that it needs, at most `MOST_LANES`.
    """

    label: str
    numbers: pd.DataFrame
    lanes: int


def judged_numbers(paper: str) -> pd.DataFrame:
    """Return the numbers of a paper that have a verdict, in the order of its scoreboard.

    Columns: `place`, the table or section; `kind`, a key of `COLORS`; `ratio` of the simulated value to the paper's,
    NaN where there is none (out of memory, zero or negative, or judged by its direction alone); `agrees`; `on_choice`;
    `cannot_fail`.
    """
    board = read(paper, "scoreboard")
    board = board[~board["verdict"].isin(["input", "in_kind", "not_run"])]
    agrees = board["verdict"].isin(["reproduced", "out_of_memory_as_in_paper"])
    comparable = board["deviation"].notna() & (board["paper_value"] > 0) & (board["simulated_value"] > 0)
    return pd.DataFrame(
        {
            "place": [_place(item) for item in board["item"]],
            "kind": board["verdict"]
            .where(~agrees, "reproduced")
            .mask(_is(board["held_out"], "true"), "held out")
            .mask(_is(board["fitted"], "true"), "fitted"),
            "ratio": (board["simulated_value"] / board["paper_value"]).where(comparable),
            "agrees": agrees,
            "on_choice": board["choice"].notna(),
            "cannot_fail": _is(board["can_fail"], "false"),
        }
    ).reset_index(drop=True)


def papers_with_numbers() -> list[str]:
    """Return the papers that have a scoreboard."""
    return sorted(path.parent.name for path in style.RESULTS.glob("*/scoreboard.csv"))


def draw_paper(paper: str) -> Figure:
    """Draw a paper's numbers, a row per table or section."""
    numbers = judged_numbers(paper)
    places = sorted(in_order(numbers["place"]), key=_order)
    rows = [dot_row(place, numbers[numbers["place"] == place], DOT_IN) for place in places]
    figure, (axes,) = _figure([rows], DOT_IN, f"{paper_title(paper)}: every judged number")
    _draw_rows(axes, rows, DOT_IN)
    _finish(figure, [axes], numbers)
    return figure


def draw_all() -> Figure:
    """Draw the numbers of all papers, below each other on one axis: predicted ones, and those fitted or held out."""
    papers = papers_with_numbers()
    every = {paper: judged_numbers(paper) for paper in papers}
    panels = []
    for numbers in every.values():
        apart = numbers["kind"].where(numbers["kind"].isin(["fitted", "held out"]), "predicted")
        found = [name for name in ("predicted", "fitted", "held out") if (apart == name).any()]
        panels.append([dot_row(name, numbers[apart == name], SMALL_DOT_IN) for name in found])
    title = f"Every judged number of the {len(papers)} papers"
    figure, panel_axes = _figure(panels, SMALL_DOT_IN, title)
    for paper, rows, axes in zip(papers, panels, panel_axes, strict=True):
        _draw_rows(axes, rows, SMALL_DOT_IN)
        axes.set_title(paper_title(paper), fontsize=9, weight="bold", pad=2)
    _finish(figure, panel_axes, pd.concat(every.values()))
    return figure


def dot_row(label: str, numbers: pd.DataFrame, dot_in: float) -> DotRow:
    """Place a row's numbers so that as few dots as possible overlap; each is at its exact ratio, or in a margin.

    Args:
        numbers: rows of `judged_numbers`.
        dot_in: diameter of a dot.
    """
    octave = np.log2(numbers["ratio"]).sort_values(kind="stable")
    dot = dot_in / _octave_in()
    inside = octave[octave.abs() <= OCTAVES]
    margins = {LESS: octave[octave < -OCTAVES], MORE: octave[octave > OCTAVES], NO_RATIO: octave[octave.isna()]}
    columns = max(1, int(2 * MARGIN_OCTAVES / dot))
    parts = [pd.DataFrame({"octave": inside, "lane": stack(inside.to_list(), dot)}, index=inside.index)]
    for middle, outside in margins.items():
        places = np.arange(len(outside))
        width = min(columns, len(outside))
        spread = (places % columns - (width - 1) / 2) * dot
        parts.append(pd.DataFrame({"octave": middle + spread, "lane": places // columns}, index=outside.index))
    placed = pd.concat([part for part in parts if len(part)])
    lanes = int(placed["lane"].max()) + 1
    placed["lane"] = [_from_middle(int(lane)) * min(1, MOST_LANES / lanes) for lane in placed["lane"]]
    return DotRow(label, numbers.join(placed), min(lanes, MOST_LANES))


def stack(positions: Sequence[float], dot: float) -> list[int]:
    """Return the lane of each dot: the lowest in which it overlaps no earlier one.

    Args:
        positions: ascending.
        dot: diameter of a dot, in their unit.
    """
    ends: list[float] = []
    lanes = []
    for position in positions:
        lane = next((lane for lane, end in enumerate(ends) if position - end >= dot), len(ends))
        ends[lane : lane + 1] = [position]
        lanes.append(lane)
    return lanes


def _from_middle(lane: int) -> int:
    """Return the place of a lane: 0, 1, -1, 2, -2 ..."""
    return (lane + 1) // 2 * (1 if lane % 2 else -1)


def _octave_in() -> float:
    return (WIDTH_IN - _LEFT_IN - _RIGHT_IN) / (RIGHT_END - LESS + MARGIN_OCTAVES)


def _height_in(rows: Sequence[DotRow], dot_in: float) -> float:
    return sum(_row_in(row, dot_in) for row in rows)


def _row_in(row: DotRow, dot_in: float) -> float:
    return max(0.17, (row.lanes + 1.2) * dot_in)


def _figure(panels: Sequence[Sequence[DotRow]], dot_in: float, title: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes of the panels' heights, below each other."""
    top, bottom, gap = 0.86, 0.42, 0.27
    heights = [_height_in(rows, dot_in) for rows in panels]
    gap_count = len(panels) - 1
    height = top + sum(heights) + gap * gap_count + bottom
    figure = plt.figure(figsize=(WIDTH_IN, height))
    figure.text(0.015, 1 - 0.08 / height, title, weight="bold", va="top", fontsize=10.5)
    panel_axes, upper = [], height - top
    for own in heights:
        frame = (_LEFT_IN / WIDTH_IN, (upper - own) / height)
        panel_axes.append(figure.add_axes((*frame, 1 - (_LEFT_IN + _RIGHT_IN) / WIDTH_IN, own / height)))
        upper -= own + gap
    return figure, panel_axes


def _draw_rows(axes: Axes, rows: Sequence[DotRow], dot_in: float) -> None:
    """Draw rows from the top down; the vertical unit is an inch."""
    upper, height = _height_in(rows, dot_in), _height_in(rows, dot_in)
    axes.set(ylim=(0, height), xlim=(LESS - MARGIN_OCTAVES, RIGHT_END))
    axes.axvspan(np.log2(0.9), np.log2(1.1), color="#dde3ea", linewidth=0, zorder=0)
    for middle in (LESS, MORE, NO_RATIO):
        axes.axvspan(middle - MARGIN_OCTAVES, middle + MARGIN_OCTAVES, color="#f3f4f6", linewidth=0, zorder=0)
    centres = []
    for row in rows:
        own = _row_in(row, dot_in)
        centres.append(upper - own / 2)
        _draw_dots(axes, row, centres[-1], dot_in)
        count = f"{row.numbers['agrees'].sum()}/{len(row.numbers)}"
        axes.annotate(
            count, (1, centres[-1]), xycoords=("axes fraction", "data"), xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=7.5, color=_DARK,
        )  # fmt: skip
        upper -= own
        if row is not rows[-1]:
            axes.axhline(upper, color="#e5e7eb", linewidth=0.6, zorder=0)
    axes.set_yticks(centres, [row.label for row in rows], fontsize=8.5)
    axes.set_xticks([])
    axes.grid(visible=False)
    for octave in range(-OCTAVES, OCTAVES + 1):
        axes.axvline(octave, color="#e5e7eb", linewidth=0.8, zorder=0)
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)


def _draw_dots(axes: Axes, row: DotRow, centre: float, dot_in: float) -> None:
    for kind, color in COLORS.items():
        of_kind = row.numbers[row.numbers["kind"] == kind]
        for (on_choice, cannot_fail), numbers in of_kind.groupby(["on_choice", "cannot_fail"]):
            axes.plot(
                numbers["octave"], centre + numbers["lane"] * dot_in,
                **_look(color, dot_in, on_choice=on_choice, cannot_fail=cannot_fail),
            )  # fmt: skip


def _look(
    color: str, dot_in: float = DOT_IN, *, on_choice: bool = False, cannot_fail: bool = False
) -> dict[str, object]:
    """Return the look of a dot: a diamond if it rests on a choice, an outline if it cannot fail."""
    points = 72 * dot_in
    return {
        "linestyle": "none",
        "marker": "D" if on_choice else "o",
        "markersize": (0.8 if on_choice else 0.92) * points,
        "markeredgewidth": 0.17 * points if cannot_fail else 0,
        "markeredgecolor": color,
        "markerfacecolor": "white" if cannot_fail else color,
        "alpha": 0.85,
    }


def _finish(figure: Figure, panel_axes: Sequence[Axes], numbers: pd.DataFrame) -> None:
    """Label the lowest axis, and add the legends above the first."""
    last = panel_axes[-1]
    ticks = {-2: "1/4", -1: "1/2", 0: "1", 1: "2", 2: "4", LESS: "<1/4", MORE: ">4", NO_RATIO: "no ratio"}
    last.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
    last.tick_params("x", labeltop=len(panel_axes) == 1)
    last.set_xlabel("ours / the paper's, simulated (band: within 10 %)", fontsize=8.5, labelpad=3)
    panel_axes[0].annotate(
        "agree", (1, 1), xycoords="axes fraction", xytext=(3, 2), textcoords="offset points",
        ha="left", va="bottom", fontsize=7.5, color="#4b5563",
    )  # fmt: skip
    kinds = {kind: _look(COLORS[kind]) for kind in _LEGEND if (numbers["kind"] == kind).any()}
    marks = {
        "on a declared choice": ("on_choice", _look("black", on_choice=True)),
        "cannot fail": ("cannot_fail", _look("black", cannot_fail=True)),
    }
    marks_used = {label: look for label, (column, look) in marks.items() if numbers[column].any()}
    for below_in, looks in ((0.27, kinds), (0.45, marks_used)):
        handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0, 1 - below_in / figure.get_figheight()),
            ncols=len(_LEGEND), frameon=False, fontsize=8, handletextpad=0, columnspacing=0.8, borderaxespad=0.2,
        )  # fmt: skip


def _is(column: pd.Series, text: str) -> pd.Series:
    """Return where a column of true, false and nothing has a value, however pandas read it."""
    return column.astype(str).str.lower() == text


def _place(item: str) -> str:
    """Return the table or section of an item: ``"Sec 5.2"`` of ``"Sec 5.2 footnote 2"``."""
    found = re.match(r"(Table|Fig\w*|Sec) [\d.]+", item)
    return found[0] if found else item


def _order(place: str) -> tuple[int, list[int]]:
    """Return a sorting key: tables, figures, the abstract, then sections."""
    kind = next((n for n, start in enumerate(("Table", "Fig", "Abstract", "Sec")) if place.startswith(start)), 4)
    return kind, [int(number) for number in re.findall(r"\d+", place)]


def paper_title(paper: str) -> str:
    """Return the name that a paper's title begins with."""
    return str(read(paper, "totals")["Paper"].iloc[0]).partition(":")[0]
