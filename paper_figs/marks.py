"""What a picture says of its marks: which are the paper's, which are ours, which are judged.

Bars and lines are ours. Diamonds are numbers that the paper states: filled if ours is judged by them, grey if a
constant was fitted on them, hollow if neither (a number that was not run, or is an input here). A triangle is a limit
in words.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figs import style

JUDGED = "stated in the paper, judged"
FITTED = "stated in the paper, fitted on"
NOT_JUDGED = "stated in the paper, not judged"
STANDINGS = (JUDGED, FITTED, NOT_JUDGED)

_RED = "#d1495b"
_MARKERS = {"": "D", "at most": "v", "at least": "^"}
_DIAMOND = {"s": 42, "linewidth": 0.8, "zorder": 5}
_LOOKS: Mapping[str, Mapping[str, Any]] = {
    JUDGED: {**_DIAMOND, "color": _RED, "edgecolor": "white"},
    FITTED: {**_DIAMOND, "color": "#9ca3af", "edgecolor": _RED},
    NOT_JUDGED: {**_DIAMOND, "color": "white", "edgecolor": _RED, "linewidth": 1.3},
}
_FONT_POINTS = 8.5
_CHARACTER_IN = 0.062
"""Width of a character of the legend, on average."""
_KEY = ("item", "model", "batch_size", "device", "system", "metric")
"""Columns that name a number in a table of results and on the scoreboard."""


class Stated(NamedTuple):
    """A number that a paper states.

    Attributes:
        standing: one of `STANDINGS`.
    """

    value: float
    standing: str

    def changed(self, change: Callable[[float], float]) -> "Stated":
        """Return the number in another unit, or over another reference."""
        return self._replace(value=change(self.value))


def numbers(table: pd.DataFrame, paper: str) -> pd.DataFrame:
    """Return the rows with a number of the paper, with its `standing`.

    Args:
        table: one of the paper's tables of results.
    """
    rows = table[table["paper_value"].notna()]
    known = _standings(paper)
    return rows.assign(standing=[known[key] for key in _keys(rows)])


def stated(table: pd.DataFrame, paper: str, **columns: str | float) -> Stated:
    """Return the paper's number in the first row with these columns."""
    rows = numbers(table, paper)
    for name, value in columns.items():
        rows = rows[rows[name] == value]
    return Stated(float(rows["paper_value"].iloc[0]), str(rows["standing"].iloc[0]))


@cache
def _standings(paper: str) -> dict[tuple[Any, ...], str]:
    """Return the standing of each number on a paper's scoreboard."""
    board = style.read(paper, "scoreboard")
    judged = ~board["verdict"].isin(["input", "not_run"])
    fitted = board["fitted"].astype(str).str.lower() == "true"
    standings = judged.map({True: JUDGED, False: NOT_JUDGED}).mask(judged & fitted, FITTED)
    return dict(zip(_keys(board), standings, strict=True))


def _keys(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the key of each row, the same whether pandas read a column as numbers or as text."""
    texts = [[_text(value) for value in table[name]] for name in _KEY]
    return list(zip(*texts, strict=True))


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float | int) else str(value)


def mark(axes: Axes, place: float | str, number: Stated, limit: str = "") -> None:
    """Draw the diamond of a number, or a triangle that points to where the paper's number is.

    Args:
        limit: ``at most`` or ``at least`` for a number of which the paper says no more than that.
    """
    look = {**_LOOKS[number.standing], "marker": _MARKERS[limit]}
    label = f"{number.standing}: {limit}" if limit else number.standing
    axes.scatter([place], [number.value], **look, label=label)


def mark_rows(axes: Axes, places: pd.DataFrame, rows: pd.DataFrame, limits: Mapping[str, str] | None = None) -> None:
    """Draw the marks of `numbers`, of those whose model and system have a place of `bar_groups`.

    Args:
        limits: see `mark`, by system.
    """
    for row in rows.itertuples():
        if row.model in places.index and row.system in places.columns:
            number = Stated(row.paper_value, row.standing)
            mark(axes, places.loc[row.model, row.system], number, (limits or {}).get(row.system, ""))


def mark_means(axes: Axes, places: pd.DataFrame, means: Mapping[str, Stated]) -> None:
    """Draw the diamonds of means, by column, in the last group of `bar_groups`."""
    for name, number in means.items():
        mark(axes, places[name].iloc[-1], number)


def band(axes: Axes, first: Stated, second: Stated) -> None:
    """Draw a range that holds for the whole axis as a band between two numbers of one standing."""
    label = f"{first.standing} (band)"
    axes.axhspan(first.value, second.value, color=_RED, alpha=0.2, linewidth=0, zorder=3, label=label)


def level(axes: Axes, number: Stated) -> None:
    """Draw a number that holds for the whole axis as a line: dotted if ours is not judged by it."""
    dotted = ":" if number.standing == NOT_JUDGED else "-"
    axes.axhline(number.value, color=_RED, linewidth=1.2, linestyle=dotted, label=f"{number.standing} (line)")


def finish(figure: Figure, title: str, *, ours: str = "Bars", how: str = "simulated", note: str = "") -> Figure:
    """Add the title, and a legend that says what is ours, how it was obtained, and what is judged.

    Args:
        ours: what our numbers are drawn as.
        how: our numbers were obtained.
        note: what is judged but has no place on the axes.
    """
    handles = _handles(figure.axes)
    of_paper = sorted(label for label in handles if label.startswith(STANDINGS))
    shown = [label for label in handles if label not in of_paper] + of_paper
    judged = any(label.startswith((JUDGED, FITTED)) for label in of_paper)
    key = f"{ours} are ours, {how}; " + ("those without a red mark are not judged" if judged else "none is judged")
    if note:
        key = f"{ours} are ours, {how}; judged is {note}"
    figure.legend(
        [handles[label] for label in shown], shown, title=key, title_fontsize=_FONT_POINTS, fontsize=_FONT_POINTS,
        frameon=False, ncols=_columns(shown, figure.get_figwidth()), loc="outside lower center", columnspacing=1.2,
    )  # fmt: skip
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
    return figure


def _columns(labels: Sequence[str], width_in: float) -> int:
    """Return how many columns of a legend have room side by side."""
    column_in = 0.55 + max(map(len, labels), default=1) * _CHARACTER_IN
    return max(1, min(len(labels), int(width_in / column_in)))


def _handles(all_axes: Iterable[Axes]) -> dict[str, Artist]:
    """Return the first artist of each label."""
    handles: dict[str, Artist] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    return handles
