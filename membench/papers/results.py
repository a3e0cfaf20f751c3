"""Results of a paper's experiments, and every file that is made of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from membench.core.record import Record
from membench.papers.experiment import Answer, Paper, PaperCell, Row
from membench.papers.quantities import Result, cells_of, evaluate
from membench.papers.scoreboard import Score, score, scoreboard
from membench.papers.scoreboard_page import TOTALS_COLUMNS, overview, page, totals
from membench.papers.tables import Measured, read_csv, table, write_csv
from membench.papers.trained import Trainings, evaluate_trained


def needed_cells(paper: Paper) -> list[PaperCell]:
    """Return every cell that some row's value is computed from, once each, in the experiments' order."""
    cells = {
        cell: None
        for experiment in paper.experiments
        for row, answer in experiment.rows
        if answer.value
        for cell in cells_of(paper, row, answer.value)
    }
    return list(cells)


def evaluate_all(
    paper: Paper, records: Mapping[PaperCell, Record], trainings: Trainings
) -> dict[str, list[Result]]:
    """Return the results of each experiment, by its name.

    Args:
        trainings: those that were run.
    """

    def result(row: Row, answer: Answer) -> Result:
        if answer.trained:
            return evaluate_trained(paper, row, answer, trainings)
        return evaluate(paper, row, answer, records)

    return {
        experiment.name: [result(row, answer) for row, answer in experiment.rows]
        for experiment in paper.experiments
    }


def write_results(paper: Paper, results: Mapping[str, Sequence[Result]], directory: Path) -> list[Score]:
    """Write ``<paper>/*.csv`` and ``<paper>/summary.md``, and gather all papers' in ``SCOREBOARD.md``.

    Raises:
        MembenchError: another paper's ``totals.csv`` cannot be read.
    """
    measured = Measured(directory / "measured")
    for name, of_experiment in results.items():
        write_csv(table(of_experiment, measured), directory / paper.name / f"{name}.csv")
    scores = score(paper, [result for of_experiment in results.values() for result in of_experiment])
    write_csv(scoreboard(scores, measured), directory / paper.name / "scoreboard.csv")
    write_csv(pd.DataFrame([totals(paper, scores)]), directory / paper.name / "totals.csv")
    (directory / paper.name / "summary.md").write_text(page(paper, scores))
    papers = [
        row
        for path in sorted(directory.glob("*/totals.csv"))
        for row in read_csv(path, columns=TOTALS_COLUMNS)
    ]
    pages = [path.read_text() for path in sorted(directory.glob("*/summary.md"))]
    (directory / "SCOREBOARD.md").write_text("\n".join([overview(papers), *pages]))
    return scores
