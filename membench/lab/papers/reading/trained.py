"""Values of rows that are answered by trainings: means over their seeds with intervals, and whether accuracy is lost.

A run that never reaches the target accuracy counts with all its epochs and its whole time, a lower bound of what it
would have taken; the result's reason names such runs.
"""

from collections.abc import Mapping, Sequence

from membench.core.record import Outcome, Record
from membench.lab.papers.reading.experiment import Answer, Paper, Row, listed
from membench.lab.papers.reading.quantities import Result
from membench.lab.training.curves import Interval, epochs_to_accuracy

NO_LOSS_POINTS = 1.0
"""Accuracy that may be lost where none is said to be: chosen, as no paper states how large a loss it would see."""

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
    if quantity.loses_to:
        return _loss(row, answer, trainings[quantity.training], trainings[quantity.loses_to])
    names, metric = quantity.trainings, quantity.metric
    pairs = [_values(name, trainings[name], metric, _target_accuracy(paper, name)) for name in names]
    found, remarks = zip(*pairs, strict=True)
    values = [own / other for own, other in zip(*found, strict=True)] if quantity.ratio_to else found[0]
    unit = listed("unit", row.unit, paper.units)
    interval = Interval.of([value / unit for value in values])
    reasons = _describe(interval, len(values)), *remarks
    return Result(row, answer, interval.mean, Outcome.OK, "; ".join(filter(None, reasons)))


def _loss(row: Row, answer: Answer, training: Sequence[Record], reference: Sequence[Record]) -> Result:
    """Return 1 for a loss of accuracy, 0 for none of `NO_LOSS_POINTS`, or no value; in pairs of runs with one seed."""
    assert answer.trained is not None
    metric = answer.trained.metric
    pairs = zip(training, reference, strict=True)
    points = Interval.of([100 * (own.metrics[metric] - other.metrics[metric]) for own, other in pairs])
    value = 1.0 if points.high < 0 else 0.0 if points.low > -NO_LOSS_POINTS else None
    reason = f"{points.mean:+.2f} points beside {answer.trained.loses_to}, {_describe(points, len(training))}"
    undecided = f"undecided, as the interval holds 0 and a loss of {NO_LOSS_POINTS:g} point: " if value is None else ""
    return Result(row, answer, value, Outcome.OK, undecided + reason)


def _describe(interval: Interval, seeds: int) -> str:
    if seeds == 1:
        return "one seed"
    if interval.low == interval.high:
        return f"the same with all {seeds} seeds"
    return f"95 % interval {interval.low:.3g} to {interval.high:.3g}, {seeds} seeds"


def _target_accuracy(paper: Paper, training: str) -> float:
    return float(paper.trainings[training]["target_accuracy"])


def _values(
    name: str, training: Sequence[Record], metric: str, target_accuracy: float
) -> tuple[tuple[float, ...], str]:
    """Return a training's values by seed, and a remark on those that never reached the target accuracy."""
    values, reached = zip(*(_value(record, metric, target_accuracy) for record in training), strict=True)
    never = reached.count(False)
    remark = f"{name}: {never} of {len(values)} runs do not reach {target_accuracy:.0%} and count in full"
    return values, remark if never else ""


def _value(record: Record, metric: str, target_accuracy: float) -> tuple[float, bool]:
    """Return one run's value, and False if it needs the target accuracy and the run never reached it."""
    if metric in ("epochs_to_accuracy", "time_to_accuracy_s"):
        epochs = epochs_to_accuracy(record, target_accuracy)
        times_s = record.samples["time_s"][:epochs]
        return (sum(times_s) if metric == "time_to_accuracy_s" else len(times_s)), epochs is not None
    name, percent, limit = metric.partition("_percent")
    return (100 if percent else 1) * record.metrics[name + limit], True
