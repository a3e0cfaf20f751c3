"""What agreement proves: fitted rows, choices, rows that cannot fail (docs/decisions/0008-scoreboard.md)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from membench.lab.papers.judging.verdicts import AGREES, DEVIATES, Verdict
from membench.lab.papers.reading.experiment import Paper, Remark, Row
from membench.lab.papers.reading.quantities import Result

EXCEEDED_BY_FAR = 1.25
"""A step that needs this many times the device's memory is out of memory under any model of it."""

STANDING_COLUMNS = ("fitted", "held_out", "choice", "can_fail")


@dataclass(frozen=True)
class Standing:
    """Standing of a judged row; a row that is not judged has `NOT_JUDGED`.

    Attributes:
        fitted: a constant or a rule was fitted on it.
        held_out: a fitted rule predicts it, and it was known when the rule was written.
        choices: names of the choices that it rests on.
        cannot_fail: the reason why it agrees whatever the model does; empty if it can fail.
    """

    fitted: bool = False
    held_out: bool = False
    choices: tuple[str, ...] = ()
    cannot_fail: str = ""

    @property
    def is_predicted(self) -> bool:
        """Whether the row counts as a prediction."""
        return not (self.fitted or self.held_out)


NOT_JUDGED = Standing()


def standing_of(paper: Paper, result: Result, verdict: Verdict) -> Standing:
    """Return the standing of a row with this verdict."""
    row = result.row
    if verdict not in AGREES + DEVIATES:
        return NOT_JUDGED
    fitted = row.value is not None and bool(texts(paper.fitted, row))
    return Standing(
        fitted,
        not fitted and bool(texts(paper.held_out, row)),
        tuple(choice.name for choice in paper.choices if choice.where.matches(row)),
        _cannot_fail(paper, result) if verdict in AGREES else "",
    )


def _cannot_fail(paper: Paper, result: Result) -> str:
    if declared := texts(paper.cannot_fail, result.row):
        return declared[0]
    if result.answer.limit:
        return "a one-sided statement"
    if (times := result.exceeds or 0) >= EXCEEDED_BY_FAR:
        return f"the step needs {times:.1f} times the device's memory"
    return ""


def standing_columns(standing: Standing, verdict: Verdict) -> dict[str, str]:
    """Return the columns of `STANDING_COLUMNS`; those of a row that is not judged are empty."""
    if verdict not in AGREES + DEVIATES:
        return dict.fromkeys(STANDING_COLUMNS, "")
    flags = {"fitted": standing.fitted, "held_out": standing.held_out, "can_fail": not standing.cannot_fail}
    found = {name: str(flag).lower() for name, flag in flags.items()} | {"choice": "; ".join(standing.choices)}
    return {name: found[name] for name in STANDING_COLUMNS}


def read_standing(entry: Mapping[str, str]) -> Standing:
    """Return what `standing_columns` wrote; why a row cannot fail is part of its reason."""
    choices = tuple(filter(None, entry["choice"].split("; ")))
    cannot_fail = "see its reason" if entry["can_fail"] == "false" else ""
    return Standing(entry["fitted"] == "true", entry["held_out"] == "true", choices, cannot_fail)


def texts(remarks: Iterable[Remark], row: Row) -> list[str]:
    """Return the texts of the remarks that apply to a row."""
    return [remark.text for remark in remarks if remark.where.matches(row)]
