"""The scoreboard: a verdict on every number that a paper states (docs/decisions/0008-scoreboard.md)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from membench.papers.experiment import Paper, Remark, Row
from membench.papers.quantities import Result
from membench.papers.row_key import RowKey
from membench.papers.tables import MeasuredValues, table_line
from membench.papers.verdicts import Verdict, judge

AGREES = (Verdict.REPRODUCED, Verdict.OUT_OF_MEMORY)
DEVIATES = (Verdict.BETTER, Verdict.WORSE)


def scoreboard(
    paper: Paper, results: Iterable[Result], measured: MeasuredValues | None = None
) -> list[dict[str, str]]:
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
        reasons = judgement.reason, *explanations(paper, row, judgement.verdict)
        lines.append(table_line(result, measured, {"verdict": str(judgement.verdict)}, *reasons))
    return lines


def _key(row: Row) -> tuple[RowKey, str]:
    return RowKey.of(row), row.claim_id


def explanations(paper: Paper, row: Row, verdict: Verdict) -> tuple[str, ...]:
    """Return the texts of the paper's remarks that apply to a row with this verdict."""
    return (
        *(_texts(paper.causes, row) if verdict in DEVIATES else ()),
        *(_texts(paper.inconsistencies, row) if verdict is not Verdict.INPUT else ()),
        *(_texts(paper.calibration, row) if is_calibrated(paper, row, verdict) else ()),
    )


def is_calibrated(paper: Paper, row: Row, verdict: Verdict) -> bool:
    """Return whether the cost model was fitted on a row."""
    judged = verdict in AGREES + DEVIATES
    return judged and row.value is not None and bool(_texts(paper.calibration, row))


@dataclass(frozen=True)
class Summary:
    """Counts of a paper's verdicts; `judged` rows agree or deviate."""

    agree: int
    deviate: int
    judged: int
    not_run: int
    inputs: int


def summarize(verdicts: Iterable[Verdict]) -> Summary:
    """Count verdicts."""
    counts = Counter(verdicts)
    agree, deviate = sum(counts[v] for v in AGREES), sum(counts[v] for v in DEVIATES)
    return Summary(agree, deviate, agree + deviate, counts[Verdict.NOT_RUN], counts[Verdict.INPUT])


def _texts(remarks: Iterable[Remark], row: Row) -> list[str]:
    return [remark.text for remark in remarks if remark.where.matches(row)]
