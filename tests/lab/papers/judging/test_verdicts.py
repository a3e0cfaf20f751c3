"""The rule of docs/decisions/0008-scoreboard.md, case by case. The paper's value is 100 MB."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from membench.core.record import Outcome
from membench.lab.papers.judging.verdicts import Judgement, Verdict, deviation, judge
from membench.lab.papers.reading.experiment import Answer, Selection, TrainedQuantity
from membench.lab.papers.reading.quantities import Result
from tests.helpers.lab.papers import ROW

Make = Callable[..., Result]
EPOCHS = replace(ROW, metric="epochs", unit="epochs")
TRAINED = TrainedQuantity("small net", "epochs_to_accuracy")


@pytest.mark.parametrize(
    ("value", "higher_is_better", "verdict"),
    [
        (100, False, Verdict.REPRODUCED),
        (90, False, Verdict.REPRODUCED),
        (110, False, Verdict.REPRODUCED),
        (89.9, False, Verdict.BETTER),
        (110.1, False, Verdict.WORSE),
        (89.9, True, Verdict.WORSE),
        (110.1, True, Verdict.BETTER),
    ],
)
def test_within_ten_percent(value: float, higher_is_better: bool, verdict: Verdict, result: Make) -> None:
    assert judge(result(value, higher_is_better=higher_is_better), None).verdict is verdict


@pytest.mark.parametrize(
    ("papers", "half_unit", "ours", "verdict"),
    [
        (0.02, 0.005, 0.0156, Verdict.REPRODUCED),
        (0.02, 0.005, 0.0149, Verdict.BETTER),
        (3.0, 0.5, 3.4, Verdict.REPRODUCED),
        (3.0, 0.05, 3.4, Verdict.WORSE),
        (100.0, 0.5, 110.0, Verdict.REPRODUCED),
    ],
)
def test_half_a_unit_of_the_last_printed_digit_is_within_tolerance(
    papers: float, half_unit: float, ours: float, verdict: Verdict, result: Make
) -> None:
    assert judge(result(ours, row=replace(ROW, value=papers, half_unit=half_unit)), None).verdict is verdict


def test_half_a_unit_counts_in_a_ratio_too(result: Make) -> None:
    baseline = result(200, row=replace(ROW, system="base", value=20.0))
    row = replace(ROW, value=2.0, half_unit=0.5)
    assert judge(result(24, row=row, baseline={"system": "base"}), baseline).verdict is Verdict.REPRODUCED
    assert judge(result(26, row=row, baseline={"system": "base"}), baseline).verdict is Verdict.WORSE


@pytest.mark.parametrize(
    ("papers", "ours", "verdict"),
    [
        (99.4, 99.44, Verdict.REPRODUCED),
        (99.4, 96.8, Verdict.WORSE),
        (98.0, 99.0, Verdict.BETTER),
        (90.0, 90.9, Verdict.REPRODUCED),
        (90.0, 88.9, Verdict.WORSE),
        (89.9, 88.8, Verdict.REPRODUCED),
        (100.0, 91.0, Verdict.REPRODUCED),
    ],
)
def test_savings_near_a_hundred_percent_are_judged_by_what_is_left(
    papers: float, ours: float, verdict: Verdict, result: Make
) -> None:
    row = replace(ROW, unit="%", value=papers, half_unit=0.05)
    judgement = judge(result(ours, row=row, higher_is_better=True), None)
    assert judgement.verdict is verdict
    assert ("what is left" in judgement.reason) == (90 <= papers < 100)


def test_negative_numbers_keep_their_direction(result: Make) -> None:
    row = replace(ROW, value=-8.0, unit="%")
    assert judge(result(-8.5, row=row), None).verdict is Verdict.REPRODUCED
    assert judge(result(-12.0, row=row), None).verdict is Verdict.BETTER
    assert judge(result(-1.0, row=row), None).verdict is Verdict.WORSE
    assert deviation(-12.0, -8.0) == -0.5


def test_a_ratio_to_the_baseline_is_judged_first(result: Make) -> None:
    baseline = result(50, row=replace(ROW, system="base", value=80.0))
    judgement = judge(result(62, baseline={"system": "base"}), baseline)
    # 62 / 50 = 1.24, near 100 / 80 = 1.25; 62 alone would be off
    assert judgement.verdict is Verdict.REPRODUCED
    assert judgement.reason == "judged by its ratio to base: 1.24 here, 1.25 in the paper"


def test_without_a_baseline_on_both_sides_the_value_is_judged(result: Make) -> None:
    out = result(None, Outcome.OUT_OF_MEMORY, row=replace(ROW, system="base", value=None, oom=True))
    assert judge(result(62, baseline={"system": "base"}), out).verdict is Verdict.BETTER
    assert judge(result(62, baseline={"system": "base"}), None).verdict is Verdict.BETTER


@pytest.mark.parametrize(
    ("papers", "papers_oom", "ours", "outcome", "verdict"),
    [
        (None, True, None, Outcome.OUT_OF_MEMORY, Verdict.OUT_OF_MEMORY),
        (None, True, 70.0, Outcome.OK, Verdict.BETTER),
        (100.0, False, None, Outcome.OUT_OF_MEMORY, Verdict.WORSE),
        (None, False, None, Outcome.OUT_OF_MEMORY, Verdict.NOT_RUN),
        (None, False, 70.0, Outcome.OK, Verdict.NOT_RUN),
        (100.0, False, None, Outcome.FAILED, Verdict.NOT_RUN),
        (100.0, False, None, Outcome.UNSUPPORTED, Verdict.NOT_RUN),
        (None, True, None, Outcome.FAILED, Verdict.NOT_RUN),
    ],
)
def test_outcomes(
    papers: float | None, papers_oom: bool, ours: float | None, outcome: Outcome, verdict: Verdict, result: Make
) -> None:
    judgement = judge(result(ours, outcome, row=replace(ROW, value=papers, oom=papers_oom)), None)
    assert judgement.verdict is verdict
    assert judgement.reason


@pytest.mark.parametrize(
    ("limit", "value", "verdict"),
    [
        ("lower", 300.0, Verdict.REPRODUCED),
        ("lower", 99.9, Verdict.WORSE),
        ("upper", 30.0, Verdict.REPRODUCED),
        ("upper", 100.1, Verdict.WORSE),
    ],
)
def test_one_sided_statements(limit: str, value: float, verdict: Verdict, result: Make) -> None:
    judgement = judge(result(value, limit=limit), None)
    assert judgement.verdict is verdict
    assert "100" in judgement.reason


def test_inputs_and_what_is_not_run_keep_their_reason() -> None:
    listed = judge(Result(ROW, Answer(Selection({}), input="a batch size")), None)
    missing = judge(Result(ROW, Answer(Selection({}), not_run="not built")), None)
    assert (listed.verdict, listed.reason) == (Verdict.INPUT, "a batch size")
    assert (missing.verdict, missing.reason) == (Verdict.NOT_RUN, "not built")
    silent = judge(Result(ROW, Answer(Selection({})), None, Outcome.OK, "no such metric"), None)
    failed = judge(Result(ROW, Answer(Selection({})), None, Outcome.FAILED, "no such file"), None)
    assert (silent.reason, failed.reason) == ("no such metric", "failed: no such file")


@pytest.mark.parametrize(
    ("ours", "our_baseline", "verdict"),
    [
        (5.0, 8.0, Verdict.REPRODUCED),
        (9.0, 8.0, Verdict.WORSE),
        (8.0, 8.0, Verdict.WORSE),  # no direction at all
    ],
)
def test_direction_only_is_judged_against_the_baseline(ours: float, our_baseline: float, verdict: Verdict) -> None:
    kind = Answer(Selection({}), trained=TRAINED, direction_only="smaller", baseline={"claim_id": "b"})
    baseline = Result(replace(EPOCHS, value=53.0), kind, our_baseline, Outcome.OK)
    judgement = judge(Result(replace(EPOCHS, value=31.0), kind, ours, Outcome.OK), baseline)
    assert judgement.verdict is verdict
    assert "judged by its direction alone" in judgement.reason
    assert "0.585 in the paper" in judgement.reason
    assert judgement.reason.endswith("; smaller")


@pytest.mark.parametrize(
    ("ours", "verdict"), [(97.5, Verdict.REPRODUCED), (97.4, Verdict.WORSE), (97.6, Verdict.BETTER)]
)
def test_a_number_that_should_not_change_must_equal_its_baseline(ours: float, verdict: Verdict) -> None:
    """The paper's own values differ by noise: 98.4 and 98.5."""
    row = replace(ROW, metric="accuracy", unit="%", value=98.4)
    kind = Answer(
        Selection({}),
        trained=TRAINED,
        direction_only="smaller",
        unchanged=True,
        higher_is_better=True,
        baseline={"system": "base"},
    )
    baseline = Result(replace(row, system="base", value=98.5), kind, 97.5, Outcome.OK)
    judgement = judge(Result(row, kind, ours, Outcome.OK), baseline)
    assert judgement.verdict is verdict
    assert "judged by whether it changes" in judgement.reason


def test_what_trainings_leave_open_is_measured_in_kind() -> None:
    undecided = Result(ROW, Answer(Selection({}), trained=TRAINED), None, Outcome.OK, "undecided")
    untrained = replace(undecided, outcome=Outcome.FAILED, reason="not trained")
    assert judge(undecided, None) == Judgement(Verdict.IN_KIND, "undecided")
    assert judge(untrained, None).verdict is Verdict.NOT_RUN


def test_direction_of_a_ratio_is_judged_against_one_and_another_number_is_in_kind() -> None:
    kind = Answer(Selection({}), trained=TRAINED, direction_only="smaller", higher_is_better=True)
    ratio = replace(EPOCHS, unit="x", value=1.4)
    assert judge(Result(ratio, kind, 3.0, Outcome.OK), None).verdict is Verdict.REPRODUCED
    assert judge(Result(ratio, kind, 0.9, Outcome.OK), None).verdict is Verdict.WORSE
    alone = judge(Result(replace(EPOCHS, value=53.0), kind, 8.0, Outcome.OK), None)
    assert (alone.verdict, alone.reason) == (Verdict.IN_KIND, "8 epochs here; smaller")
    missing = judge(Result(ratio, kind, None, Outcome.FAILED, "not trained"), None)
    assert (missing.verdict, missing.reason) == (Verdict.NOT_RUN, "not trained")
