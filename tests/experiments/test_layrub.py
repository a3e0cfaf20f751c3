"""What of Layrub's paper is judged, listed, or left for later."""

from membench.papers.experiment import Experiment
from membench.papers.loader import load_paper
from tests.helpers.papers import EXPERIMENTS

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


def test_reference_has_every_table_and_every_claim() -> None:
    rows = [row for experiment in LAYRUB.experiments for row, _ in experiment.rows if row.line]
    assert {f"Table {number}" for number in range(1, 9)} <= {row.item for row in rows}
    assert {row.claim_id for row in rows} - {""} == {f"L{number:03d}" for number in range(1, 106)}
