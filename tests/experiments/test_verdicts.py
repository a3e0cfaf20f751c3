"""The committed scoreboards: one quantity has one verdict."""

import csv
from collections import defaultdict

from membench.core.configuration import ROOT
from membench.lab.papers.judging.verdicts import Verdict
from membench.lab.papers.reading.experiment import Paper


def test_equal_values_are_not_better_in_one_row_and_worse_in_another(paper: Paper) -> None:
    """Rows with the same value of ours, the same value of the paper and the same unit state one quantity twice."""
    with (ROOT / "results" / paper.name / "scoreboard.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    verdicts: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for row in rows:
        if row["paper_value"] and (row["simulated_value"] or row["measured_value"]):
            key = (row["simulated_value"], row["measured_value"], row["paper_value"], row["unit"])
            verdicts[key].add(row["verdict"])
    assert verdicts
    opposite = [key for key, found in verdicts.items() if {Verdict.BETTER, Verdict.WORSE} <= found]
    assert not opposite
