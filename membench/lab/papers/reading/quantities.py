"""Values of a paper's rows, computed from records.

`cells_of` yields the cells that have to be run, `evaluate` computes from their records; both walk over the same
quantity. A system with a ``function`` (`Paper.systems`) is not run: its numbers are computed here.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from membench.core.record import LARGEST, Outcome, Record
from membench.core.targets import find_function
from membench.lab.papers.reading.experiment import Answer, Form, Paper, PaperCell, Quantity, Row, Take, listed

_FORMS: dict[Form, Callable[[float, float], float]] = {
    Form.INCREASE_PERCENT: lambda own, other: 100 * (own / other - 1),
    Form.REDUCTION_PERCENT: lambda own, other: 100 * (1 - own / other),
    Form.PERCENT: lambda own, other: 100 * own / other,
    Form.RATIO: lambda own, other: own / other,
    Form.DIFFERENCE: lambda own, other: own - other,
}
_TAKES: dict[Take, Callable[[list[float]], float]] = {Take.MEAN: statistics.fmean, Take.MIN: min, Take.MAX: max}


@dataclass(frozen=True)
class Result:
    """A row with our value.

    Attributes:
        value: in the row's unit; None: there is none, for a `reason`.
        outcome: how the run ended or, of many, the one that gave no value.
        our_batch_size: the one that was run where the paper states none.
        exceeds: how many times the device's memory a step that does not fit needs; None for one that fits.
        at_papers_largest: the result at the paper's largest batch, for a row at the largest here; otherwise None.
    """

    row: Row
    answer: Answer
    value: float | None = None
    outcome: Outcome | None = None
    reason: str = ""
    our_batch_size: int | None = None
    exceeds: float | None = None
    at_papers_largest: "Result | None" = None


class _NoValueError(Exception):
    """A run has no such metric, or one of 0 that nothing can be divided by."""

    def __init__(self, outcome: Outcome, reason: str, exceeds: float | None = None) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.exceeds = exceeds


def cells_of(paper: Paper, row: Row, answer: Answer) -> Iterator[PaperCell]:
    """Yield every cell that has to be run for a row."""
    for quantity in filter(None, (answer.value, answer.at_papers_largest.value)):
        for cell in _cells(paper, row, quantity):
            for used in [cell, _reference(paper, cell, quantity)[0]] if quantity.form else [cell]:
                if not _function(paper, used):
                    yield used


def evaluate(paper: Paper, row: Row, answer: Answer, records: Mapping[PaperCell, Record]) -> Result:
    """Return a row's value, or the reason why there is none."""
    result = _evaluated(paper, row, answer, records)
    if not answer.papers_largest:
        return result
    return replace(result, at_papers_largest=_evaluated(paper, row, answer.at_papers_largest, records))


def _evaluated(paper: Paper, row: Row, answer: Answer, records: Mapping[PaperCell, Record]) -> Result:
    if answer.value is None:
        return Result(row, answer, reason=answer.input or answer.not_run)
    cells = list(_cells(paper, row, answer.value))
    ran = _own_batch_size(row, cells[0], records) if answer.value.take is None else None
    try:
        values = [_compared(paper, records, cell, answer.value) for cell in cells]
    except _NoValueError as error:
        return Result(row, answer, None, error.outcome, str(error), ran, error.exceeds)
    value = _TAKES[answer.value.take](values) if answer.value.take else values[0]
    value *= answer.value.times / listed("unit", row.unit, paper.units)
    return Result(row, answer, value, Outcome.OK, our_batch_size=ran)


def _own_batch_size(row: Row, cell: PaperCell, records: Mapping[PaperCell, Record]) -> int | None:
    """Return the batch size of a row's cell, where the paper states none or each side has its own largest."""
    if row.batch_size is not None and cell.batch_size != LARGEST:
        return None
    ran = records[cell].configuration["batch_size"] if cell in records else cell.batch_size
    return ran if isinstance(ran, int) else None


def _cells(paper: Paper, row: Row, quantity: Quantity) -> Iterator[PaperCell]:
    own = {name: getattr(row, name) for name in ("model", "system", "batch_size")}
    own["device"] = row.device or paper.device
    for values in product(*quantity.over.values()):
        yield _cell(paper, {**own, **quantity.cell, **dict(zip(quantity.over, values, strict=True))})


def _reference(paper: Paper, cell: PaperCell, quantity: Quantity) -> tuple[PaperCell, str]:
    """Return the cell and the metric that a cell is compared with."""
    changed = dict(quantity.reference)
    metric = changed.pop("metric", quantity.metric)
    return _cell(paper, vars(cell) | changed), metric


def _cell(paper: Paper, columns: Mapping[str, Any]) -> PaperCell:
    """Return a cell; a named batch size (``normal``) becomes the model's number, except for ``largest``."""
    named = listed("model", columns["model"], paper.models).get("batch_sizes", {})
    return PaperCell(**{**columns, "batch_size": named.get(columns["batch_size"], columns["batch_size"])})


def _compared(paper: Paper, records: Mapping[PaperCell, Record], cell: PaperCell, quantity: Quantity) -> float:
    own = _metric(paper, records, cell, quantity.metric)
    if quantity.form is None:
        return own
    reference, metric = _reference(paper, cell, quantity)
    other = _metric(paper, records, reference, metric)
    if not other and quantity.form is not Form.DIFFERENCE:
        cause = f"{reference.model} by {reference.system}: {metric} is 0, so there is no ratio"
        raise _NoValueError(Outcome.OK, cause)
    return _FORMS[quantity.form](own, other)


def _metric(paper: Paper, records: Mapping[PaperCell, Record], cell: PaperCell, name: str) -> float:
    if function := _function(paper, cell):
        return _known(find_function(function)(paper, cell), name, cell)
    record = records[cell]
    failure = f"{cell.model} by {cell.system}: {record.reason}"
    if name in paper.record_metrics:
        value: float | None = find_function(paper.record_metrics[name])(paper, cell, record)
        if value is None:
            raise _NoValueError(record.outcome, failure, _exceeds(record))
        return value
    known = {**record.metrics, **record.layer_metrics}
    if record.outcome is not Outcome.OK and not (record.outcome is Outcome.OUT_OF_MEMORY and name in known):
        raise _NoValueError(record.outcome, failure, _exceeds(record))
    return _known({"batch_size": record.configuration["batch_size"], **known}, name, cell)


def _known(numbers: Mapping[str, float], name: str, cell: PaperCell) -> float:
    if name not in numbers:
        raise _NoValueError(Outcome.FAILED, f"{cell.model} by {cell.system}: its record has no {name}")
    return numbers[name]


def _exceeds(record: Record) -> float | None:
    """Return how many times the device's memory a step that does not fit needs."""
    if record.outcome is not Outcome.OUT_OF_MEMORY:
        return None
    needed, capacity = (record.metrics.get(name) for name in ("required_memory_bytes", "capacity_bytes"))
    return needed / capacity if needed and capacity else None


def _function(paper: Paper, cell: PaperCell) -> str:
    """Return the function that computes a cell's numbers, empty for a cell that is run."""
    return str(paper.systems.get(cell.system, {}).get("function", ""))
