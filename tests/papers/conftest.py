"""Papers and records made up for the tests; no number here is a measurement."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from membench.core.record import Outcome, Record, Source
from membench.papers.experiment import Answer, Cell, Paper, Quantity, Row, Selection
from membench.papers.quantities import Result

PAPER = Paper(
    name="paper",
    title="A paper",
    device="a card",
    models={
        "small": {"configuration": "small", "dataset": "data", "layers": 5, "batch_sizes": {"normal": 8}},
        "deep": {"configuration": "deep", "dataset": "data", "layers": 50},
    },
    systems={"base": {"framework": "caffe"}, "ours": {"framework": "mxnet"}},
    devices={"a card": "card"},
    clusters={},
    training_images={"data": 1000},
    experiments=(),
    inconsistencies=(),
    causes=(),
    calibration=(),
)

ROW = Row("Table 1", "small", "data", 8, "a card", "ours", "memory", "MB", 100.0, line=2)


def record(outcome: Outcome = Outcome.OK, *, batch_size: int = 8, **metrics: float) -> Record:
    reason = "" if outcome is Outcome.OK else "too big"
    return Record({"batch_size": batch_size}, "hash", Source.SIMULATED, outcome, reason, metrics)


def cell(model: str = "small", system: str = "ours", batch_size: int | str | None = 8) -> Cell:
    return Cell(model, system, "a card", batch_size)


def answer(metric: str = "peak_memory_bytes", **changed: Any) -> Answer:
    baseline = changed.pop("baseline", {})
    higher, limit = changed.pop("higher_is_better", False), changed.pop("limit", "")
    value = Quantity(metric, **changed)
    return Answer(Selection({}), value=value, baseline=baseline, higher_is_better=higher, limit=limit)


@pytest.fixture
def result() -> Callable[..., Result]:
    """A result with a given value and outcome; by default, the paper's value is 100 MB."""

    def make(value: float | None, outcome: Outcome = Outcome.OK, row: Row = ROW, **answered: Any) -> Result:
        return Result(row, answer(**answered), value, outcome, "" if value is not None else "the reason")

    return make


@pytest.fixture
def results(result: Callable[..., Result]) -> list[Result]:
    """A row that deviates, one that is met, one that is not run, and one that a figure shows; the paper's order is another."""
    return [
        result(150.0, row=replace(ROW, model="deep", line=3)),
        result(101.0),
        Result(replace(ROW, system="other", line=4), Answer(Selection({}), not_run="other is not built yet")),
        result(7.0, row=replace(ROW, item="Figure 1", value=None, line=None)),
    ]
