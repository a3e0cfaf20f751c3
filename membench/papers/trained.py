"""Values of a paper's rows that come from trainings: the mean over their seeds.

A run that never reaches the target accuracy counts with all the epochs and all the time that it ran, which is the least that
it would have taken; the result's reason says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from membench.core.record import Outcome, Record
from membench.papers.experiment import Answer, Paper, Row, listed
from membench.papers.quantities import Result
from membench.training.curves import epochs_to_accuracy, time_to_accuracy_s

Trainings = Mapping[str, Sequence[Record]]

_TO_TARGET: dict[str, Callable[[Record, float], float | None]] = {
    "epochs_to_accuracy": epochs_to_accuracy,
    "time_to_accuracy_s": time_to_accuracy_s,
}

_FULL: dict[str, Callable[[Record], float]] = {
    "epochs_to_accuracy": lambda record: len(record.samples["time_s"]),
    "time_to_accuracy_s": lambda record: sum(record.samples["time_s"]),
}


@dataclass(frozen=True)
class _Mean:
    value: float
    remark: str


def evaluate_trained(paper: Paper, row: Row, answer: Answer, trainings: Trainings) -> Result:
    """Return a row's value from trainings, or why there is none.

    Args:
        trainings: records by the training's name, one for each seed; those that were run.
    """
    quantity = answer.trained
    assert quantity is not None
    names = [name for name in (quantity.training, quantity.ratio_to) if name]
    missing = [name for name in names if name not in trainings]
    if missing:
        reason = f"{missing[0]!r} has not been trained; run `make train-{paper.name}`"
        return Result(row, answer, outcome=Outcome.FAILED, reason=reason)
    means = [
        _mean(trainings[name], quantity.metric, paper.trainings[name]["target_accuracy"]) for name in names
    ]
    value = means[0].value / means[1].value if quantity.ratio_to else means[0].value
    value /= listed("unit", row.unit, paper.units)
    remarks = (f"{name}: {mean.remark}" for name, mean in zip(names, means, strict=True) if mean.remark)
    return Result(row, answer, value=value, outcome=Outcome.OK, reason="; ".join(remarks))


def _value(record: Record, metric: str, target_accuracy: float) -> float | None:
    """Return one run's value, or None where it never reached the target accuracy."""
    if metric in _TO_TARGET:
        return _TO_TARGET[metric](record, target_accuracy)
    name, percent, limit = metric.partition("_percent")
    return 100 * record.metrics[name + limit] if percent else record.metrics[name]


def _mean(training: Sequence[Record], metric: str, target_accuracy: float) -> _Mean:
    values = [_value(record, metric, target_accuracy) for record in training]
    never = values.count(None)
    remark = (
        f"{never} of {len(values)} runs do not reach {target_accuracy:.0%} and count in full" if never else ""
    )
    full = [
        _FULL[metric](record) if value is None else value
        for record, value in zip(training, values, strict=True)
    ]
    return _Mean(fmean(full), remark)
