"""The scoreboard: a verdict on every number that a paper states (docs/decisions/0008-scoreboard.md)."""

from collections.abc import Iterable
from dataclasses import replace

from membench.core.tables import format_number
from membench.lab.papers.judging.standing import standing_columns, standing_of, texts
from membench.lab.papers.judging.tables import MeasuredValues, table_line
from membench.lab.papers.judging.verdicts import AGREES, DEVIATES, Verdict, judge
from membench.lab.papers.reading.experiment import Paper, Row
from membench.lab.papers.reading.quantities import Result
from membench.lab.papers.reading.row_key import RowKey

NO_VALUE = "none"


def scoreboard(paper: Paper, results: Iterable[Result], measured: MeasuredValues | None = None) -> list[dict[str, str]]:
    """Judge the rows that a paper states and return the scoreboard's lines, in the order of ``reference.csv``.

    Args:
        measured: values of real devices; see `table_line`.
    """
    stated = sorted((each for each in results if each.row.line), key=lambda each: each.row.line or 0)
    by_key = {_key(result.row): result for result in stated}
    lines = []
    for result in stated:
        row, of_baseline = result.row, result.answer.baseline
        judgement = judge(result, by_key.get(_key(replace(row, **of_baseline))) if of_baseline else None)
        standing = standing_of(paper, result, judgement.verdict)
        certain = f"cannot fail: {standing.cannot_fail}" if standing.cannot_fail else ""
        reasons = judgement.reason, certain, *explanations(paper, row, judgement.verdict)
        judged = {"verdict": str(judgement.verdict), **standing_columns(standing, judgement.verdict)}
        judged |= {"at_papers_largest": _at_papers_largest(result)}
        lines.append(table_line(result, measured, judged, *reasons))
    return lines


def _at_papers_largest(result: Result) -> str:
    """Return the value at the paper's largest batch, `NO_VALUE` without one; empty for rows of another batch."""
    other = result.at_papers_largest
    return "" if other is None else format_number(other.value) or NO_VALUE


def _key(row: Row) -> tuple[RowKey, str]:
    return RowKey.of(row), row.claim_id


def explanations(paper: Paper, row: Row, verdict: Verdict) -> tuple[str, ...]:
    """Return the texts of the paper's remarks that apply to a row with this verdict."""
    is_judged = verdict in AGREES + DEVIATES
    return (
        *(texts(paper.causes, row) if verdict in DEVIATES else ()),
        *(texts((*paper.contradictions, *paper.inconsistencies), row) if verdict is not Verdict.INPUT else ()),
        *(texts((*paper.fitted, *paper.held_out), row)[:1] if is_judged and row.value is not None else ()),
    )
