"""Papers and records made up for the tests; no number here is a measurement."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from membench.core.record import Outcome
from membench.lab.papers.reading.experiment import Answer, Row, Selection
from membench.lab.papers.reading.quantities import Result
from tests.helpers.lab.papers import ROW, answer


@pytest.fixture
def result() -> Callable[..., Result]:
    """A result with a given value and outcome; by default, the paper's value is 100 MB."""

    def make(value: float | None, outcome: Outcome = Outcome.OK, row: Row = ROW, **answered: Any) -> Result:
        return Result(row, answer(**answered), value, outcome, "" if value is not None else "the reason")

    return make


@pytest.fixture
def results(result: Callable[..., Result]) -> list[Result]:
    """A row that deviates, one met, one not run, and one in a figure; the paper's order is another."""
    return [
        result(150.0, row=replace(ROW, model="deep", line=3)),
        result(101.0),
        Result(replace(ROW, system="other", line=4), Answer(Selection({}), not_run="other is not built yet")),
        result(7.0, row=replace(ROW, item="Figure 1", value=None, line=None)),
    ]
