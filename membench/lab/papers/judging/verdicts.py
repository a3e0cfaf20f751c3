"""The verdict on a row: membench's value against the paper's (docs/decisions/0008-scoreboard.md).

A row is judged by its ratio to the baseline of the same run if the paper prints the baseline too, otherwise by its own
value: reproduced within 10 % or half a unit of the last digit that the paper prints, the larger of the two, beyond that
better or worse in the direction that a user prefers. A percentage from 90 to below 100 is judged by what is left of
100. A one-sided statement ("more than 10 times") is reproduced only if it holds. A row that is judged by its direction
only is reproduced if our number lies on the same side of its baseline as the paper's, or, if the paper claims no
change, if ours equals its baseline; without a baseline it is measured in kind, and not judged.
"""

from dataclasses import dataclass
from enum import StrEnum

from membench.core.record import Outcome
from membench.lab.papers.reading.quantities import Result

TOLERANCE = 0.10
NEAR_HUNDRED = 90.0
"""From this percentage on, what is left of 100 is judged."""


class Verdict(StrEnum):
    """The verdicts on a row."""

    REPRODUCED = "reproduced"
    BETTER = "better"
    WORSE = "worse"
    OUT_OF_MEMORY = "out_of_memory_as_in_paper"
    IN_KIND = "in_kind"
    """Measured on other data or another network than the paper's, and not judged: a value of which only a direction
    could be compared, or a statement that the interval over seeds leaves open."""
    NOT_RUN = "not_run"
    INPUT = "input"
    """An input of the experiments or a description, which is not judged."""


AGREES = (Verdict.REPRODUCED, Verdict.OUT_OF_MEMORY)
DEVIATES = (Verdict.BETTER, Verdict.WORSE)


@dataclass(frozen=True)
class Judgement:
    """A verdict and the sentence that explains it."""

    verdict: Verdict
    reason: str


def deviation(value: float, paper_value: float) -> float | None:
    """Return a value's difference from the paper's, as a fraction of the paper's; None if that is 0."""
    return None if paper_value == 0 else (value - paper_value) / abs(paper_value)


def judge(result: Result, baseline: Result | None) -> Judgement:
    """Judge a row.

    Args:
        baseline: the result to whose row the ratio is taken; None if the row is judged by its own value.
    """
    row, answer = result.row, result.answer
    if answer.input:
        return Judgement(Verdict.INPUT, answer.input)
    if answer.not_run:
        return Judgement(Verdict.NOT_RUN, answer.not_run)
    if answer.direction_only:
        return _judge_direction(result, baseline)
    if row.value is None:
        return _judge_without_number(result)
    if result.outcome is Outcome.OUT_OF_MEMORY:
        return Judgement(Verdict.WORSE, f"it ran in the paper and does not fit here: {result.reason}")
    if answer.trained and result.value is None and result.outcome is Outcome.OK:
        return Judgement(Verdict.IN_KIND, result.reason)
    if result.value is None:
        outcome = "" if result.outcome is Outcome.OK else f"{result.outcome}: "
        return Judgement(Verdict.NOT_RUN, f"{outcome}{result.reason}")
    if answer.limit:
        return _judge_limit(result.value, row.value, answer.limit)
    ours, papers, higher_is_better = result.value, row.value, answer.higher_is_better
    tolerance, reason = max(TOLERANCE * abs(papers), row.half_unit), result.reason if answer.trained else ""
    if ratios := _ratios(result, baseline):
        tolerance *= abs(ratios[1] / papers)
        ours, papers = ratios
        system = answer.baseline["system"]
        reason = f"judged by its ratio to {system}: {ours:.3g} here, {papers:.3g} in the paper"
    elif row.unit == "%" and NEAR_HUNDRED <= papers < 100:
        ours, papers, higher_is_better = 100 - ours, 100 - papers, not higher_is_better
        tolerance = max(TOLERANCE * papers, row.half_unit)
        reason = f"judged by what is left: {ours:.3g} % here, {papers:.3g} % in the paper"
    if abs(ours - papers) <= tolerance:
        return Judgement(Verdict.REPRODUCED, reason)
    return Judgement(Verdict.BETTER if (ours > papers) == higher_is_better else Verdict.WORSE, reason)


def _judge_direction(result: Result, baseline: Result | None) -> Judgement:
    row, answer = result.row, result.answer
    if result.value is None or row.value is None:
        return Judgement(Verdict.NOT_RUN, result.reason or "the paper prints no number")
    sides, reference = _ratios(result, baseline), "beside its baseline"
    if not answer.baseline:
        sides, reference = ((result.value, row.value) if row.unit == "x" else None), "beside 1"
    if sides is None:
        here = f"{result.value:.3g} {row.unit} here"
        return Judgement(Verdict.IN_KIND, "; ".join(filter(None, (here, result.reason, answer.direction_only))))
    ours, papers = sides
    judged_by, digits = ("whether it changes", 4) if answer.unchanged else ("its direction alone", 3)
    numbers = f"{ours:.{digits}g} here and {papers:.{digits}g} in the paper {reference}"
    reason = f"judged by {judged_by}: {numbers}; {answer.direction_only}"
    reason += f"; {result.reason}" if result.reason else ""
    if ours == 1 if answer.unchanged else (ours - 1) * (papers - 1) > 0:
        return Judgement(Verdict.REPRODUCED, reason)
    return Judgement(Verdict.BETTER if (ours > papers) == answer.higher_is_better else Verdict.WORSE, reason)


def _judge_limit(ours: float, papers: float, limit: str) -> Judgement:
    reason = f"the paper states {'more' if limit == 'lower' else 'less'} than {papers:g}"
    holds = ours >= papers if limit == "lower" else ours <= papers
    return Judgement(Verdict.REPRODUCED if holds else Verdict.WORSE, reason)


def _judge_without_number(result: Result) -> Judgement:
    if result.row.oom and result.outcome is Outcome.OUT_OF_MEMORY:
        return Judgement(Verdict.OUT_OF_MEMORY, result.reason)
    if result.row.oom and result.value is not None:
        return Judgement(Verdict.BETTER, "out of memory in the paper; fits here")
    here = f"here: {result.reason}" if result.value is None else "our value stands alone"
    return Judgement(Verdict.NOT_RUN, f"the paper prints no number; {here}")


def _ratios(result: Result, baseline: Result | None) -> tuple[float, float] | None:
    """Return our ratio to the baseline and the paper's, or None if a number is missing."""
    if baseline is None or not baseline.value or not baseline.row.value:
        return None
    assert result.value is not None
    assert result.row.value is not None
    return result.value / baseline.value, result.row.value / baseline.row.value
