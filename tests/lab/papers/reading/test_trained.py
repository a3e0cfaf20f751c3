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


def loss_beside_the_baseline(points: list[float]) -> Result:
    """The result of a method whose runs have this accuracy beside those of the baseline, seed by seed."""
    before = [0.7, 0.75, 0.8, 0.85]
    trainings = {
        "baseline": [run([accuracy]) for accuracy in before],
        "method": [run([accuracy + point / 100]) for accuracy, point in zip(before, points, strict=True)],
    }
    quantity = TrainedQuantity("method", "test_accuracy", loses_to="baseline")
    return evaluate_trained(PAPER, ROW, Answer(Selection({}), trained=quantity), trainings)


@pytest.mark.parametrize(
    ("points", "value"),
    [
        ([-2.0, -2.1, -1.9, -2.0], 1),
        ([-0.2, -0.3, -0.25, -0.25], 1),  # a small loss is a loss, where seeds show it
        ([0.1, -0.1, 0.1, -0.1], 0),
        ([3.0, 5.0, 4.0, 4.0], 0),  # a gain is no loss
        ([-3.0, 3.0, -2.0, 2.0], None),
    ],
)
def test_a_loss_of_accuracy_is_decided_by_the_interval_over_seeds(points: list[float], value: float | None) -> None:
    found = loss_beside_the_baseline(points)
    assert (found.value, found.outcome) == (value, Outcome.OK)
    assert found.reason.startswith("undecided") == (value is None)
    assert found.reason.endswith(", 4 seeds")


def test_the_reason_has_the_interval_of_the_differences() -> None:
    """With a standard deviation of 2.5 and Student's t of 3.182 for four seeds, it is 3.98 to each side."""
    found = loss_beside_the_baseline([-1.0, -1.0, -1.0, 4.0]).reason
    assert found.endswith("+0.25 points beside baseline, 95 % interval -3.73 to 4.23, 4 seeds")


def test_values_are_in_the_unit_of_the_row() -> None:
    assert result("slow", "time_to_accuracy_s", unit="ms").value == pytest.approx(5000)


def test_a_run_that_does_not_reach_the_accuracy_counts_in_full_with_a_reason() -> None:
    remark = "slow: 2 of 2 runs do not reach 95% and count in full"
    never = result("slow", "epochs_to_accuracy", target_accuracy=0.95)
    assert (never.value, never.reason) == (3, f"the same with all 2 seeds; {remark}")
    assert result("slow", "time_to_accuracy_s", target_accuracy=0.95).value == 6
    assert remark in result("fast", "epochs_to_accuracy", "slow", target_accuracy=0.95).reason


def test_what_was_not_trained_has_no_value_but_a_reason() -> None:
    missing = result("missing", "epochs_to_accuracy")
    assert (missing.value, missing.reason) == (None, "'missing' has not been trained; run `make train-paper`")
    assert result("fast", "epochs_to_accuracy", "missing").value is None


def test_trained_values_are_measured_ones_and_have_no_deviation() -> None:
    frame = table([result("slow", "epochs_to_accuracy")], MeasuredValues(Path("nowhere")))
    assert frame.loc[0, ["simulated_value", "measured_value", "deviation"]].tolist() == ["", "2.5", ""]
