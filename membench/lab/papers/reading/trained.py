"""Values of rows that are answered by trainings: means over their seeds, and whether two trainings differ.

A run that never reaches the target accuracy counts with all its epochs and its whole time, a lower bound of what it
would have taken; the result's reason names such runs.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from membench.core.record import Outcome, Record
from membench.lab.papers.reading.experiment import Answer, Paper, Row, listed
from membench.lab.papers.reading.quantities import Result
from membench.lab.training.curves import epochs_to_accuracy, permutation_test

RunsByTraining = Mapping[str, Sequence[Record]]
"""The records of each completed training by its name, one for each seed."""


def evaluate_trained(paper: Paper, row: Row, answer: Answer, trainings: RunsByTraining) -> Result:
    """Return a row's value in its unit, or the reason why there is none."""
    quantity = answer.trained
    assert quantity is not None
    for name in quantity.trainings:
        if name not in trainings:
            reason = f"{name!r} has not been trained; run `make train-{paper.name}`"
            return Result(row, answer, outcome=Outcome.FAILED, reason=reason)
    if quantity.differs_from:
        test = permutation_test(trainings[quantity.training], trainings[quantity.differs_from], quantity.metric)
        reason = f"by a permutation test, whose p-value is {test.p_value:.2f}"
        return Result(row, answer, float(test.is_significant), Outcome.OK, reason)
    means, remarks = zip(
        *(_mean(name, trainings[name], quantity.metric, _target_accuracy(paper, name)) for name in quantity.trainings),
        strict=True,
    )
    value = means[0] / means[1] if quantity.ratio_to else means[0]
    value /= listed("unit", row.unit, paper.units)
    return Result(row, answer, value, Outcome.OK, "; ".join(filter(None, remarks)))


def _target_accuracy(paper: Paper, training: str) -> float:
    return float(paper.trainings[training]["target_accuracy"])


def _mean(name: str, training: Sequence[Record], metric: str, target_accuracy: float) -> tuple[float, str]:
    """Return the mean over a training's runs, and a remark on those that never reached the target accuracy."""
    values, reached = zip(*(_value(record, metric, target_accuracy) for record in training), strict=True)
    never = reached.count(False)
    remark = f"{name}: {never} of {len(values)} runs do not reach {target_accuracy:.0%} and count in full"
    return fmean(values), remark if never else ""


def _value(record: Record, metric: str, target_accuracy: float) -> tuple[float, bool]:
    """Return one run's value, and False if it needs the target accuracy and the run never reached it."""
    if metric in ("epochs_to_accuracy", "time_to_accuracy_s"):
        epochs = epochs_to_accuracy(record, target_accuracy)
        times_s = record.samples["time_s"][:epochs]
        return (sum(times_s) if metric == "time_to_accuracy_s" else len(times_s)), epochs is not None
    name, percent, limit = metric.partition("_percent")
    return (100 if percent else 1) * record.metrics[name + limit], True
