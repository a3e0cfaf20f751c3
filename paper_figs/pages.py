"""`paper_figs/<paper>/README.md`: each picture beside what the paper's figure shows, every difference named.

What the paper's figures show is in `paper_figs/<paper>/figures.yaml`. What a picture shows is read off the picture
while it is drawn, so that the page cannot say anything else.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from paper_figs.marks import STANDINGS

HERE = Path(__file__).parent
FILE = "figures.yaml"
PAGE = "README.md"


@dataclass(frozen=True)
class Drawn:
    """What a picture shows.

    Attributes:
        x: titles of horizontal axes; what stands along them if they have none.
        y: titles of vertical axes.
        panels: titles of panels.
        series: our labels in the legend.
        marks: how many marks of the paper there are, by label.
        key: the sentence above the legend.
    """

    title: str
    x: tuple[str, ...]
    y: tuple[str, ...]
    panels: tuple[str, ...]
    series: tuple[str, ...]
    marks: Mapping[str, int]
    key: str

    @property
    def names(self) -> frozenset[str]:
        """All words by which the picture names something."""
        return frozenset({*self.x, *self.y, *self.panels, *self.series})


def drawn(figure: Figure) -> Drawn:
    """Return what a picture shows, which `marks.finish` finished."""
    [legend] = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    all_axes = figure.axes
    shared = {axes for axes in all_axes if axes.get_xlabel()} or set(all_axes)
    y = [figure.get_supylabel(), *(axes.get_ylabel() for axes in all_axes)]
    return Drawn(
        title=_line(figure.get_suptitle()),
        x=_lines(axes.get_xlabel() or _ticks(axes.get_xticklabels()) for axes in all_axes if axes in shared),
        y=_lines(y) or _lines(_ticks(axes.get_yticklabels()) for axes in all_axes),
        panels=_lines(axes.get_title(loc="left") for axes in all_axes),
        series=(
            *(label for label in labels if not label.startswith(STANDINGS)),
            *_lines(text.get_text() for axes in all_axes for text in axes.get_yticklabels() if not _number(text)),
        ),
        marks=_marks(figure),
        key=legend.get_title().get_text(),
    )


def _marks(figure: Figure) -> dict[str, int]:
    artists = (each for axes in figure.axes for each in (*axes.collections, *axes.lines, *axes.patches))
    labels = [str(each.get_label()) for each in artists]
    return {label: labels.count(label) for label in sorted(set(labels)) if label.startswith(STANDINGS)}


def page(paper: str, title: str, pictures: Mapping[str, Drawn]) -> str:
    """Return the page of a paper's pictures.

    Args:
        pictures: by the name of the script that draws each.

    Raises:
        LookupError: `figures.yaml` lacks a picture, or one of its keys.
    """
    described = read(paper)
    schematics = ", ".join(map(str, described["schematics"]))
    not_redrawn = f"Figures {schematics} are schematics and not redrawn." if schematics else "There are no figures."
    text = f"""# Pictures of {title}

Written by `make figures`; edit `{FILE}`. Captions and text of the paper say what its figures show; its images are not
at hand. Bars and lines are ours. Red diamonds are numbers that the paper states: filled if ours is judged by them, grey
if a constant was fitted on them, hollow if neither. {not_redrawn}
"""
    return "\n".join([text, *(_section(name, described[name], picture) for name, picture in pictures.items())])


def read(paper: str) -> dict[str, Any]:
    """Return what a paper's figures show, by the name of the script that draws each, and its ``schematics``."""
    found: dict[str, Any] = yaml.safe_load((HERE / paper / FILE).read_text())
    return found


def _section(name: str, described: Mapping[str, Any], picture: Drawn) -> str:
    series = described["series"]
    rows = [
        ("horizontal", described["x"], "; ".join(picture.x)),
        ("vertical", described["y"], "; ".join(picture.y)),
        *((f"series: {its}", "drawn", ours or "missing, see below") for its, ours in series.items()),
        *((f"series: {ours}", "", "added") for ours in picture.series if ours not in series.values()),
        ("panels, setting", described["setting"], "; ".join(picture.panels)),
        ("numbers", f"known from: {described['basis']}", picture.key),
        ("marks", "", "; ".join(f"{label} ({count})" for label, count in picture.marks.items()) or "none"),
    ]
    table = "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows)
    differences = "\n".join(f"- {each}" for each in described["differences"]) or "- None is known."
    return f"""## {picture.title}

![{picture.title}]({name}.png)

| | the paper's figure | the picture here |
| --- | --- | --- |
{table}

Differences:

{differences}
"""


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|")


def _lines(texts: Any) -> tuple[str, ...]:
    """Return different texts in their order, each in one line."""
    return tuple(dict.fromkeys(_line(text) for text in texts if text))


def _line(text: str) -> str:
    return " ".join(text.split())


def _ticks(labels: Sequence[Any]) -> str:
    return ", ".join(_line(label.get_text()) for label in labels if label.get_text())


def _number(text: Any) -> bool:
    """Return whether a label of an axis is a number."""
    return bool(re.fullmatch(r"\W?[\d.,]+", text.get_text()))
