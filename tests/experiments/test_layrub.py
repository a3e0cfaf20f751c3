"""Layrub's paper: rows that are judged, and rows that figures show."""

from membench.lab.papers.reading.experiment import Experiment
from membench.lab.papers.reading.loader import load_paper
from tests.helpers.lab.papers import EXPERIMENTS

LAYRUB = load_paper(EXPERIMENTS / "layrub")


def _experiment(name: str) -> Experiment:
    return next(experiment for experiment in LAYRUB.experiments if experiment.name == name)


def test_every_row_of_times_and_memories_is_judged() -> None:
    for name in ("table5", "table6", "table8"):
        assert all(answer.value is not None for _, answer in _experiment(name).rows)


def test_figures_show_every_strategy() -> None:
    for name in ("figure9", "figure10", "figure11"):
        shown = [row for row, _ in _experiment(name).rows if row.line is None]
        assert {row.system for row in shown} == {"Caffe", "Layrub-intra", "Layrub-inter", "Layrub-hybrid"}
        assert all(row.value is None for row in shown)
