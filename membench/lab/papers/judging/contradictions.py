"""What a paper states in two ways: each contradiction once, with the numbers that it concerns."""

from collections.abc import Sequence
from pathlib import Path

from membench.core.tables import read_csv
from membench.lab.papers.judging.numbers import Number, PaperNumbers

COLUMNS = ("paper", "number", "stated", "contradicted_by")
_SHOWN = 3
"""Of several numbers that are contradicted alike."""


def contradictions(numbers: PaperNumbers) -> list[dict[str, str]]:
    """Return a line for each contradiction of a paper with itself, by `COLUMNS`."""
    paper = numbers.paper
    lines = []
    for count, remark in enumerate(paper.contradictions, start=1):
        concerned = [number for number in numbers.stated if remark.where.matches(number.row)]
        cells = paper.name, str(count), _stated(concerned), remark.text
        lines.append(dict(zip(COLUMNS, cells, strict=True)))
    return lines


def read_contradictions(folder: Path) -> list[dict[str, str]]:
    """Return the lines of a paper's ``contradictions.csv``; none without such a file."""
    path = folder / "contradictions.csv"
    return read_csv(path, columns=COLUMNS) if path.exists() else []


def anchor_of(paper: str, number: int | str) -> str:
    """Return the anchor of a contradiction on the scoreboard."""
    return f"{paper}-contradiction-{number}"


def _stated(concerned: Sequence[Number]) -> str:
    """Return the numbers in words; one that is stated in several places is named once, with the places."""
    places: dict[str, list[str]] = {}
    for number in concerned:
        row = number.row
        of = ", ".join(filter(None, (row.model, row.system, row.metric.replace("_", " "))))
        places.setdefault(f"{of}: {number.values['paper_value']}", []).append(row.item)
    texts = [f"{', '.join(dict.fromkeys(items))}: {text}" for text, items in places.items()]
    more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return "; ".join([*texts[:_SHOWN], *more])
