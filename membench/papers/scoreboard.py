"""The scoreboard: a verdict on every number that a paper states."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from membench.papers.experiment import Paper, Remark, Row
from membench.papers.quantities import Result
from membench.papers.tables import Measured, key_columns, value_columns
from membench.papers.verdicts import Judgement, Verdict, judge

AGREES = (Verdict.REPRODUCED, Verdict.OUT_OF_MEMORY)
DEVIATES = (Verdict.BETTER, Verdict.WORSE)


@dataclass(frozen=True)
class Score:
    """One row of the scoreboard.

    Attributes:
        remarks: what is known of this row, and mostly of others too: causes of its deviation, inconsistencies of the paper.
        calibrated: the cost model was fitted on this row, so that it proves nothing.
    """

    result: Result
    judgement: Judgement
    remarks: tuple[str, ...]
    calibrated: bool

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def reason(self) -> str:
        """All that explains the verdict, in a line."""
        return "; ".join(filter(None, (self.judgement.reason, *self.remarks)))


def score(paper: Paper, results: Iterable[Result]) -> list[Score]:
    """Judge every row that the paper states, in the order of `reference.csv`."""
    stated = sorted(
        (result for result in results if result.row.line is not None), key=lambda result: result.row.line or 0
    )
    by_key = {_key(result.row): result for result in stated}
    return [_score(paper, result, by_key) for result in stated]


def _score(paper: Paper, result: Result, by_key: dict[tuple[object, ...], Result]) -> Score:
    row = result.row
    baseline = by_key.get(_key(row, **result.answer.baseline)) if result.answer.baseline else None
    judgement = judge(result, baseline)
    calibrated = is_calibrated(paper, row, judgement.verdict)
    remarks = (
        *(_texts(paper.causes, row) if judgement.verdict in DEVIATES else ()),
        *(_texts(paper.inconsistencies, row) if judgement.verdict is not Verdict.INPUT else ()),
        *(_texts(paper.calibration, row) if calibrated else ()),
    )
    return Score(result, judgement, remarks, calibrated)


def is_calibrated(paper: Paper, row: Row, verdict: Verdict) -> bool:
    """Return whether the cost model was fitted on a row."""
    judged = verdict in AGREES + DEVIATES
    return judged and row.value is not None and bool(_texts(paper.calibration, row))


def scoreboard(scores: Sequence[Score], measured: Measured) -> pd.DataFrame:
    """Return the table with DESIGN 7's columns; every cell is text."""
    rows = []
    for entry in scores:
        measured_value, device = measured.find(entry.result.row)
        reasons = [entry.reason, f"measured on {device}" if device else ""]
        rows.append(
            {
                **key_columns(entry.result.row),
                **value_columns(entry.result, measured_value),
                "verdict": str(entry.verdict),
                "reason": "; ".join(filter(None, reasons)),
            }
        )
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Summary:
    """Counts of a paper's verdicts; `judged` are the rows with a value of ours to compare."""

    agree: int
    deviate: int
    judged: int
    not_run: int
    inputs: int


def summarize(verdicts: Iterable[Verdict]) -> Summary:
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


def _key(row: Row, **changed: Any) -> tuple[object, ...]:
    names = ("item", "model", "dataset", "batch_size", "device", "system", "metric", "claim_id")
    return tuple(({name: getattr(row, name) for name in names} | changed).values())
