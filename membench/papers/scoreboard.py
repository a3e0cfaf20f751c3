"""The scoreboard: a verdict on every number that a paper states."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from membench.papers.experiment import Paper, Remark, Row
from membench.papers.quantities import Result
from membench.papers.row_key import RowKey
from membench.papers.tables import MeasuredValues, table_line
from membench.papers.verdicts import Judgement, Verdict, judge

AGREES = (Verdict.REPRODUCED, Verdict.OUT_OF_MEMORY)
DEVIATES = (Verdict.BETTER, Verdict.WORSE)


@dataclass(frozen=True)
class Score:
    """One row of the scoreboard.

    Attributes:
        explanations: texts of the remarks that apply: causes of a deviation, inconsistencies of the paper, fits.
        calibrated: the cost model was fitted on this row, which is therefore not evidence.
    """

    result: Result
    judgement: Judgement
    explanations: tuple[str, ...]
    calibrated: bool

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def reason(self) -> str:
        """The whole explanation of the verdict, in a line."""
        return "; ".join(filter(None, (self.judgement.reason, *self.explanations)))


def score(paper: Paper, results: Iterable[Result]) -> list[Score]:
    """Judge the rows that a paper states, in the order of ``reference.csv``."""
    stated = sorted(
        (result for result in results if result.row.line is not None), key=lambda result: result.row.line or 0
    )
    by_key = {_key(result.row): result for result in stated}
    return [_score(paper, result, by_key) for result in stated]


def _score(paper: Paper, result: Result, by_key: Mapping[tuple[RowKey, str], Result]) -> Score:
    row, baseline = result.row, None
    if result.answer.baseline:
        baseline = by_key.get(_key(replace(row, **result.answer.baseline)))
    judgement = judge(result, baseline)
    return Score(
        result,
        judgement,
        explanations(paper, row, judgement.verdict),
        is_calibrated(paper, row, judgement.verdict),
    )


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


def scoreboard(scores: Iterable[Score], measured: MeasuredValues | None = None) -> list[dict[str, str]]:
    """Return the lines of the scoreboard (docs/decisions/0008-scoreboard.md), with the values of real devices if given."""
    return [table_line(each.result, measured, {"verdict": str(each.verdict)}, each.reason) for each in scores]


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
    return Summary(
        agree=agree,
        deviate=deviate,
        judged=agree + deviate,
        not_run=counts[Verdict.NOT_RUN],
        inputs=counts[Verdict.INPUT],
    )


def _texts(remarks: Iterable[Remark], row: Row) -> list[str]:
    return [remark.text for remark in remarks if remark.where.matches(row)]
