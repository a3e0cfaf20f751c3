"""Values of a paper's rows that come from trainings: the mean over their seeds."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from membench.experiment import Answer, Paper, Row
from membench.record import Outcome, Record
from membench.report.curves import epochs_to_accuracy, time_to_accuracy_s
from membench.report.quantities import Result

Trainings = Mapping[str, Sequence[Record]]

_METRICS: dict[str, Callable[[Record, float], float | None]] = {
    "epochs_to_accuracy": epochs_to_accuracy,
    "time_to_accuracy_s": time_to_accuracy_s,
    "test_accuracy_percent": lambda record, _: 100 * record.metrics["test_accuracy"],
}


class _NoValueError(Exception):
    """A training was not run, or did not get that far."""


def evaluate_trained(paper: Paper, row: Row, answer: Answer, trainings: Trainings) -> Result:
    """Return a row's value from trainings, or why there is none.

    Args:
        trainings: records by the training's name, one for each seed; those that were run.
    """
    quantity = answer.trained
    assert quantity is not None
    try:
        value = _mean(paper, quantity.training, quantity.metric, trainings)
        if quantity.ratio_to:
            value /= _mean(paper, quantity.ratio_to, quantity.metric, trainings)
    except _NoValueError as error:
        return Result(row, answer, outcome=Outcome.FAILED, reason=str(error))
    return Result(row, answer, value=value, outcome=Outcome.OK)


def _mean(paper: Paper, training: str, metric: str, trainings: Trainings) -> float:
    if training not in trainings:
        raise _NoValueError(f"{training!r} has not been trained; run `make train-{paper.name}`")
    target_accuracy = paper.trainings[training]["target_accuracy"]
    values = [_METRICS[metric](record, target_accuracy) for record in trainings[training]]
    reached = [value for value in values if value is not None]
    if len(reached) < len(values):
        never = len(values) - len(reached)
        raise _NoValueError(f"{training!r}: {never} of {len(values)} runs never reach {target_accuracy:.0%}")
    return fmean(reached)
