"""Values of a paper's rows, computed from records.

The same walk over a quantity serves twice: `cells_of` tells what has to be run, `evaluate` computes.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from membench.core.record import Outcome, Record
from membench.core.units import PRINTED_UNITS
from membench.papers.experiment import (
    Answer,
    Cell,
    Form,
    Paper,
    Quantity,
    Row,
    Take,
    listed,
    steps_per_iteration,
)

_TAKES: dict[Take, Callable[[list[float]], float]] = {
    Take.MEAN: statistics.fmean,
    Take.MIN: min,
    Take.MAX: max,
}


@dataclass(frozen=True)
class Result:
    """A row with our value beside the paper's.

    Attributes:
        value: in the row's unit; None where there is none, and then `reason` says why.
        outcome: of the run or, of many, of the one that spoiled the value.
    """

    row: Row
    answer: Answer
    value: float | None = None
    outcome: Outcome | None = None
    reason: str = ""


class _NoValueError(Exception):
    """A run did not give a metric, or gave one that nothing can be compared with."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


def cells_of(paper: Paper, row: Row, quantity: Quantity) -> Iterator[Cell]:
    """Yield every cell that a row's quantity is computed from."""
    for cell in _cells(paper, row, quantity):
        yield cell
        if quantity.form:
            yield _reference(paper, cell, quantity)[0]


def evaluate(paper: Paper, row: Row, answer: Answer, records: Mapping[Cell, Record]) -> Result:
    """Return a row's value, or why there is none."""
    if answer.value is None:
        return Result(row, answer, reason=answer.input or answer.not_run)
    cells = list(_cells(paper, row, answer.value))
    first = records[cells[0]]
    if row.batch_size is None and answer.value.take is None:
        row = replace(row, batch_size=first.configuration["batch_size"])
    try:
        values = [_compared(paper, records, cell, answer.value) for cell in cells]
    except _NoValueError as error:
        return Result(row, answer, outcome=error.outcome, reason=str(error))
    value = _TAKES[answer.value.take](values) if answer.value.take else values[0]
    # percentages and ratios carry no unit to convert; sizes, times and counts do
    return Result(
        row,
        answer,
        value=value * answer.value.times / listed("unit", row.unit, PRINTED_UNITS),
        outcome=Outcome.OK,
    )


def _cells(paper: Paper, row: Row, quantity: Quantity) -> Iterator[Cell]:
    own: dict[str, Any] = {
        "model": row.model,
        "system": row.system,
        "device": row.device or paper.device,
        "batch_size": row.batch_size,
    }
    for values in product(*quantity.over.values()):
        yield _cell(paper, {**own, **quantity.cell, **dict(zip(quantity.over, values, strict=True))})


def _reference(paper: Paper, cell: Cell, quantity: Quantity) -> tuple[Cell, str]:
    """Return the cell and the metric that a cell is compared with."""
    changed = dict(quantity.reference)
    metric = changed.pop("metric", quantity.metric)
    return _cell(paper, {f.name: getattr(cell, f.name) for f in fields(cell)} | changed), metric


def _cell(paper: Paper, columns: Mapping[str, Any]) -> Cell:
    """Return a cell whose named batch size (``normal``) is the model's number, ``largest`` excepted."""
    named = listed("model", columns["model"], paper.models).get("batch_sizes", {})
    return Cell(**{**columns, "batch_size": named.get(columns["batch_size"], columns["batch_size"])})


def _compared(paper: Paper, records: Mapping[Cell, Record], cell: Cell, quantity: Quantity) -> float:
    own = _metric(paper, records, cell, quantity.metric)
    if quantity.form is None:
        return own
    reference, metric = _reference(paper, cell, quantity)
    other = _metric(paper, records, reference, metric)
    if not other and quantity.form is not Form.DIFFERENCE:
        cause = f"{reference.model} by {reference.system}: {metric} is 0, so there is no ratio"
        raise _NoValueError(Outcome.OK, cause)
    match quantity.form:
        case Form.INCREASE_PERCENT:
            return 100 * (own / other - 1)
        case Form.REDUCTION_PERCENT:
            return 100 * (1 - own / other)
        case Form.PERCENT:
            return 100 * own / other
        case Form.RATIO:
            return own / other
        case Form.DIFFERENCE:
            return own - other


def _metric(paper: Paper, records: Mapping[Cell, Record], cell: Cell, name: str) -> float:
    record = records[cell]
    model = paper.models[cell.model]
    out_of_memory = record.outcome is Outcome.OUT_OF_MEMORY
    if name in ("trained_layers", "trained_batch_size") and (record.outcome is Outcome.OK or out_of_memory):
        trained = model["layers"] if name == "trained_layers" else record.configuration["batch_size"]
        return 0 if out_of_memory else trained
    known = {**record.metrics, **record.layer_metrics}
    if record.outcome is not Outcome.OK and not (out_of_memory and name in known):
        raise _NoValueError(record.outcome, f"{cell.model} by {cell.system}: {record.reason}")
    if name == "batch_size":
        return record.configuration["batch_size"]
    if name in ("iteration_time_s", "epoch_time_s"):
        steps = steps_per_iteration(model, paper.systems[cell.system])
        step_time_s = record.metrics["step_time_s"]
        local_step_time_s = record.metrics.get("local_step_time_s", step_time_s)  # without an exchange
        iteration_time_s = (steps - 1) * local_step_time_s + step_time_s
        if name == "iteration_time_s":
            return iteration_time_s
        return iteration_time_s * paper.training_images[model["dataset"]] / record.configuration["batch_size"]
    if name not in known:
        raise _NoValueError(Outcome.FAILED, f"{cell.model} by {cell.system}: its record has no {name}")
    return known[name]
