"""The scoreboard: a verdict on every number that a paper states, and a page that sums it up."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd

from membench.experiment import Paper, Remark, Row
from membench.report.quantities import Result
from membench.report.tables import Measured, key_columns, value_columns
from membench.report.verdicts import Judgement, Verdict, judge

AGREES = (Verdict.REPRODUCED, Verdict.OUT_OF_MEMORY)
DEVIATES = (Verdict.BETTER, Verdict.WORSE)


@dataclass(frozen=True)
class Score:
    """One row of the scoreboard.

    Attributes:
        calibrated: the cost model was fitted on this row, so that it proves nothing.
    """

    result: Result
    judgement: Judgement
    calibrated: bool

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict


class Judged(Protocol):
    """What is counted: a `Score`, or a row read from a scoreboard."""

    @property
    def verdict(self) -> Verdict: ...

    @property
    def calibrated(self) -> bool: ...


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
    cause = "; ".join(_texts(paper.causes, row)) if judgement.verdict in DEVIATES else ""
    calibrated = is_calibrated(paper, row, judgement.verdict)
    remarks = _texts(paper.inconsistencies, row) if judgement.verdict is not Verdict.INPUT else []
    remarks += _texts(paper.calibration, row) if calibrated else []
    sentences = [judgement.reason, cause, *remarks]
    reason = "; ".join(sentence for sentence in sentences if sentence)
    return Score(result, Judgement(judgement.verdict, reason), calibrated)


def is_calibrated(paper: Paper, row: Row, verdict: Verdict) -> bool:
    """Return whether the cost model was fitted on a row."""
    judged = verdict in AGREES + DEVIATES
    return judged and row.value is not None and bool(_texts(paper.calibration, row))


def scoreboard(scores: Sequence[Score], measured: Measured) -> pd.DataFrame:
    """Return the table with DESIGN 7's columns; every cell is text."""
    rows = []
    for entry in scores:
        measured_value, device = measured.find(entry.result.row)
        reasons = [entry.judgement.reason, f"measured on {device}" if device else ""]
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
    calibrated: int
    not_run: int
    inputs: int


def summarize(scores: Sequence[Judged]) -> Summary:
    counts = Counter(entry.verdict for entry in scores)
    agree, deviate = sum(counts[v] for v in AGREES), sum(counts[v] for v in DEVIATES)
    return Summary(
        agree=agree,
        deviate=deviate,
        judged=agree + deviate,
        calibrated=sum(entry.calibrated for entry in scores),
        not_run=counts[Verdict.NOT_RUN],
        inputs=counts[Verdict.INPUT],
    )


_COUNTED = ("Reproduced", "Better", "Worse", "Fitted", "Not run", "Inputs")
TOTALS_COLUMNS = ("Paper", *_COUNTED)


def totals(paper: Paper, scores: Sequence[Score]) -> dict[str, str]:
    """Return a paper's line of `overview`."""
    return {"Paper": paper.title, **dict(zip(_COUNTED, _counts(scores), strict=True))}


_LEGEND = (
    "Of the numbers that a paper prints: within 10 % of it, or out of memory as there; beyond that, in the direction that a "
    "user would or would not like; those on which the model was fitted, which prove nothing; not run; and those that the "
    "experiments start from."
)


def overview(papers: Iterable[Mapping[str, str]]) -> str:
    """Return `SCOREBOARD.md`'s first table: how many numbers of each paper came out how.

    Args:
        papers: the `totals` of each.
    """
    rows = []
    for paper in papers:
        name, title = paper["Paper"].partition(":")[0], paper["Paper"].lower()
        anchor = re.sub(r"[^\w -]", "", title).replace(" ", "-")
        rows.append((f"[{name}](#{anchor})", *(paper[column] for column in _COUNTED)))
    return "\n".join(["# Scoreboard", "", *_markdown_table(TOTALS_COLUMNS, rows), "", _LEGEND, ""])


def page(paper: Paper, scores: Sequence[Score]) -> str:
    """Return `SCOREBOARD.md`'s section on one paper."""
    total = summarize(scores)
    fitted = [entry for entry in scores if entry.calibrated]
    unfitted = [entry for entry in scores if not entry.calibrated]
    predicted = summarize(unfitted)
    of_fit = (
        f"Another {len(fitted)} rows are those on which the model was fitted "
        f"({summarize(fitted).agree} within 10 %): they are listed, and prove nothing. "
    ) * bool(fitted)
    of_values = (
        "Values are simulated on the paper's devices; accuracies come from trainings of a small network, and only their direction is judged."
        if paper.trainings
        else "All values are simulated on the paper's devices."
    )
    lines = [
        f"## {paper.title}",
        "",
        f"**{predicted.agree} of {predicted.judged} predicted numbers reproduced**, {predicted.deviate} deviate; "
        f"{total.not_run} not run; {total.inputs} inputs of the experiments, not judged.",
        "",
        f"{of_fit}{of_values} A row counts as reproduced within 10 % of the paper's number, or where it runs out of memory "
        f"as in the paper; each row with its reason: [scoreboard.csv]({paper.name}/scoreboard.csv).",
        "",
        *_markdown_table(("Where", *_COUNTED), _items(scores)),
        "",
        "### What deviates",
        "",
        *_deviations(scores),
        "",
        "### What was not run",
        "",
        *_not_run(scores),
        "",
    ]
    return "\n".join(lines)


def _items(scores: Sequence[Score]) -> list[tuple[str, ...]]:
    groups: dict[str, list[Score]] = {}
    for entry in scores:
        item = entry.result.row.item
        groups.setdefault(item if item.startswith("Table") else "Prose and captions", []).append(entry)
    rows = []
    for item in sorted(groups, key=lambda name: (not name.startswith("Table"), name)):
        rows.append((item, *_counts(groups[item])))
    return rows


def _counts(scores: Sequence[Score]) -> tuple[str, ...]:
    """Return what `_COUNTED` names; nothing where there is none."""
    counts = Counter(entry.verdict for entry in scores if not entry.calibrated)
    numbers = (
        sum(counts[v] for v in AGREES),
        counts[Verdict.BETTER],
        counts[Verdict.WORSE],
        sum(entry.calibrated for entry in scores),
        counts[Verdict.NOT_RUN],
        counts[Verdict.INPUT],
    )
    return tuple(str(number) if number else "" for number in numbers)


def _deviations(scores: Sequence[Score]) -> list[str]:
    rows = []
    for entry in scores:
        if entry.verdict in DEVIATES:
            values = value_columns(entry.result, None)
            rows.append(
                (
                    _describe(entry.result.row),
                    _with_unit(values["paper_value"], entry.result.row.unit),
                    _with_unit(values["simulated_value"] or values["measured_value"], entry.result.row.unit),
                    str(entry.verdict),
                    entry.judgement.reason or "no cause found yet",
                )
            )
    return _markdown_table(("Number", "Paper", "Ours", "Verdict", "Why"), rows) if rows else ["Nothing."]


def _with_unit(value: str, unit: str) -> str:
    return f"{value} {unit}" if value else "out of memory"


def _not_run(scores: Sequence[Score]) -> list[str]:
    reasons = Counter(entry.judgement.reason for entry in scores if entry.verdict is Verdict.NOT_RUN)
    rows = [
        (str(count), reason)
        for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return _markdown_table(("Rows", "Reason"), rows) if rows else ["Nothing."]


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _describe(row: Row) -> str:
    batch = f"batch {row.batch_size}" if row.batch_size else ""
    return ", ".join(filter(None, (row.item, row.model, batch, row.device, row.system, row.metric)))


def _texts(remarks: Iterable[Remark], row: Row) -> list[str]:
    return [remark.text for remark in remarks if remark.where.matches(row)]


def _key(row: Row, **changed: Any) -> tuple[object, ...]:
    names = ("item", "model", "dataset", "batch_size", "device", "system", "metric", "claim_id")
    return tuple(({name: getattr(row, name) for name in names} | changed).values())
