"""A paper and its records made up for the tests; no number here is a measurement."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from membench.core.configuration import ROOT
from membench.core.record import Outcome, Record, Source
from membench.lab.papers.judging.numbers import PaperNumbers, stated_numbers
from membench.lab.papers.judging.scoreboard import scoreboard
from membench.lab.papers.reading.experiment import Answer, Experiment, Paper, PaperCell, Quantity, Row, Selection
from membench.lab.papers.reading.quantities import Result

EXPERIMENTS = ROOT / "experiments"
"""The folder of the real papers."""

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
)

ROW = Row("Table 1", "small", "data", 8, "a card", "ours", "memory", "MB", 100.0, line=2)


def record(outcome: Outcome = Outcome.OK, *, batch_size: int = 8, **metrics: float) -> Record:
    reason = "" if outcome is Outcome.OK else "too big"
    return Record({"batch_size": batch_size}, "hash", Source.SIMULATED, outcome, reason, metrics)


def cell(model: str = "small", system: str = "ours", batch_size: int | str | None = 8) -> PaperCell:
    return PaperCell(model, system, "a card", batch_size)


def answer(metric: str = "peak_memory_bytes", **changed: Any) -> Answer:
    baseline = changed.pop("baseline", {})
    higher, limit = changed.pop("higher_is_better", False), changed.pop("limit", "")
    value = Quantity(metric, **changed)
    return Answer(Selection({}), value=value, baseline=baseline, higher_is_better=higher, limit=limit)


def numbers_of(paper: Paper, results: Sequence[Result]) -> PaperNumbers:
    """The numbers of a paper that has one experiment, with these results."""
    rows = tuple((result.row, result.answer) for result in results)
    paper = replace(paper, experiments=(Experiment("table1", "A table", rows),))
    return stated_numbers(paper, scoreboard(paper, results))
