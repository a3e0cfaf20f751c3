"""The papers' orders: all that can be compared is, and the committed tables follow from the scoreboards."""

from itertools import combinations

from membench.core.configuration import ROOT
from membench.core.tables import read_csv
from membench.lab.papers.judging.compare import read_results
from membench.lab.papers.judging.deviations import deviations
from membench.lab.papers.judging.numbers import Number, stated_numbers
from membench.lab.papers.judging.rankings import rankings
from membench.lab.papers.judging.verdicts import AGREES, DEVIATES
from membench.lab.papers.reading.experiment import Paper

RESULTS = ROOT / "results"


def test_committed_rankings_and_deviations_follow_from_the_committed_scoreboards(paper: Paper) -> None:
    numbers = stated_numbers(paper, read_results(RESULTS / paper.name))
    assert rankings(numbers) == read_csv(RESULTS / paper.name / "rankings.csv")
    assert deviations(numbers) == read_csv(RESULTS / paper.name / "deviations.csv")


def test_what_can_be_compared_is_compared(paper: Paper) -> None:
    """Two numbers of one place and metric that differ in the method or the network alone are of one order."""
    limits = {row.line for each in paper.experiments for row, answer in each.rows if answer.limit}
    numbers = stated_numbers(paper, read_results(RESULTS / paper.name)).stated
    judged = [n for n in numbers if n.verdict in AGREES + DEVIATES and n.row.line not in limits]
    ordered = {_statement(n) for n in numbers for order in paper.orders if order.where.matches(n.row)}
    for pair in combinations(judged, 2):
        if _differ_in_one_column(*pair):
            assert {_statement(number) for number in pair} <= ordered, pair


def _statement(number: Number) -> tuple[object, ...]:
    """Return what a number states, wherever it stands."""
    return number.row.model, number.row.metric, number.row.value


def _differ_in_one_column(first: Number, second: Number) -> bool:
    equal = ("item", "metric", "unit", "device", "batch_size", "note")
    if any(getattr(first.row, name) != getattr(second.row, name) for name in equal):
        return False
    papers = [number.row.value for number in (first, second)]
    differing = [name for name in ("system", "model") if getattr(first.row, name) != getattr(second.row, name)]
    return None not in papers and papers[0] != papers[1] and len(differing) == 1
