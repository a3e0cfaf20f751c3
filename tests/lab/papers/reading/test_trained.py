from dataclasses import replace
from pathlib import Path

import pytest

from membench.core.record import Outcome
from membench.lab.papers.judging.tables import MeasuredValues, table
from membench.lab.papers.reading.experiment import Answer, Selection, TrainedQuantity
from membench.lab.papers.reading.quantities import Result
from membench.lab.papers.reading.trained import evaluate_trained
from tests.helpers.lab.papers import PAPER, ROW
from tests.helpers.lab.trainings import run

TRAININGS = {"slow": [run([0.5, 0.5, 0.9]), run([0.5, 0.9, 0.9])], "fast": [run([0.9]), run([0.9])]}
TRAINED = replace(PAPER, trainings={name: {"target_accuracy": 0.8} for name in ("slow", "fast", "missing")})


def result(training: str, metric: str, ratio_to: str = "", *, target_accuracy: float = 0.8, unit: str = "x") -> Result:
    answer = Answer(Selection({}), trained=TrainedQuantity(training, metric, ratio_to), direction_only="smaller")
    paper = replace(TRAINED, trainings={name: {"target_accuracy": target_accuracy} for name in TRAINED.trainings})
    return evaluate_trained(paper, replace(ROW, unit=unit), answer, TRAININGS)


@pytest.mark.parametrize(
    ("metric", "ratio_to", "value"),
    [
        ("epochs_to_accuracy", "", 2.5),
        ("epochs_to_accuracy", "fast", 2.5),
        ("time_to_accuracy_s", "", 5.0),
        ("time_to_accuracy_s", "fast", 2.5),
        ("test_accuracy_percent", "", 90.0),
        ("test_accuracy", "", 0.9),
    ],
)
def test_values_are_means_over_seeds(metric: str, ratio_to: str, value: float) -> None:
    found = result("slow", metric, ratio_to)
    assert (found.value, found.outcome) == (pytest.approx(value), Outcome.OK)


def test_whether_trainings_differ_is_decided_by_a_permutation_test() -> None:
    names = ("low", "high", "high again")
    high = [run([0.9 + 0.001 * seed]) for seed in range(4)]
    trainings = {"low": [run([0.5 + 0.001 * seed]) for seed in range(4)], "high": high, "high again": high[::-1]}
    paper = replace(PAPER, trainings={name: {"target_accuracy": 0.8} for name in names})
    found = []
    for name in names[::2]:
        quantity = TrainedQuantity(name, "test_accuracy", differs_from="high")
        answer = Answer(Selection({}), trained=quantity)
        found.append(evaluate_trained(paper, ROW, answer, trainings))
    assert [result.value for result in found] == [1, 0]
    assert found[1].reason == "by a permutation test, whose p-value is 1.00"


def test_values_are_in_the_unit_of_the_row() -> None:
    assert result("slow", "time_to_accuracy_s", unit="ms").value == pytest.approx(5000)


def test_a_run_that_does_not_reach_the_accuracy_counts_in_full_with_a_reason() -> None:
    remark = "slow: 2 of 2 runs do not reach 95% and count in full"
    never = result("slow", "epochs_to_accuracy", target_accuracy=0.95)
    assert (never.value, never.reason) == (3, remark)
    assert result("slow", "time_to_accuracy_s", target_accuracy=0.95).value == 6
    assert remark in result("fast", "epochs_to_accuracy", "slow", target_accuracy=0.95).reason


def test_what_was_not_trained_has_no_value_but_a_reason() -> None:
    missing = result("missing", "epochs_to_accuracy")
    assert (missing.value, missing.reason) == (None, "'missing' has not been trained; run `make train-paper`")
    assert result("fast", "epochs_to_accuracy", "missing").value is None


def test_trained_values_are_measured_ones_and_have_no_deviation() -> None:
    frame = table([result("slow", "epochs_to_accuracy")], MeasuredValues(Path("nowhere")))
    assert frame.loc[0, ["simulated_value", "measured_value", "deviation"]].tolist() == ["", "2.5", ""]
