"""Results of a paper's experiments, and the files made from them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from membench.core.files import write_whole
from membench.core.record import Record
from membench.core.tables import read_csv, write_csv
from membench.lab.papers.judging import contradictions, deviations, rankings, sensitivity
from membench.lab.papers.judging.closeness import Closeness, read_closeness
from membench.lab.papers.judging.numbers import PaperNumbers, stated_numbers
from membench.lab.papers.judging.scoreboard import scoreboard
from membench.lab.papers.judging.sensitivity import (
    Read,
    alternative_line,
    base_line,
    not_run_line,
    read_sensitivity,
    row_lines,
)
from membench.lab.papers.judging.tables import MeasuredValues, table
from membench.lab.papers.pages.scoreboard_page import TOTALS_COLUMNS, scoreboard_page, summary_page, totals_row
from membench.lab.papers.reading.experiment import Alternative, Answer, Paper, PaperCell, Row
from membench.lab.papers.reading.quantities import Result, cells_of, evaluate
from membench.lab.papers.reading.trained import RunsByTraining, evaluate_trained


def needed_cells(paper: Paper) -> list[PaperCell]:
    """Return the cells that the rows' values are computed from, once each, in the experiments' order."""
    rows = (pair for experiment in paper.experiments for pair in experiment.rows)
    return list(dict.fromkeys(cell for row, answer in rows for cell in cells_of(paper, row, answer)))


def evaluate_all(
    paper: Paper, records: Mapping[PaperCell, Record], trainings: RunsByTraining
) -> dict[str, list[Result]]:
    """Return the results of each experiment, by its name."""

    def result(row: Row, answer: Answer) -> Result:
        if answer.trained:
            return evaluate_trained(paper, row, answer, trainings)
        return evaluate(paper, row, answer, records)

    return {
        experiment.name: [result(row, answer) for row, answer in experiment.rows] for experiment in paper.experiments
    }


def write_results(paper: Paper, results: Mapping[str, Sequence[Result]], directory: Path) -> PaperNumbers:
    """Write ``<paper>/*.csv`` and ``<paper>/summary.md``, and ``SCOREBOARD.md`` from all papers' files.

    Raises:
        MembenchError: another paper's ``totals.csv`` cannot be read.
    """
    import pandas as pd  # takes half a second, which parsing need not wait for

    measured, folder = MeasuredValues(directory / "measured"), directory / paper.name
    for name, of_experiment in results.items():
        write_csv(table(of_experiment, measured), folder / f"{name}.csv")
    every = [result for of_experiment in results.values() for result in of_experiment]
    write_csv(pd.DataFrame(scoreboard(paper, every, measured)), folder / "scoreboard.csv")
    numbers = judged(paper, every)
    write_csv(pd.DataFrame([totals_row(numbers)]), folder / "totals.csv")
    agreed = Closeness.of(numbers)
    contradicted = pd.DataFrame(contradictions.contradictions(numbers), columns=contradictions.COLUMNS)
    write_csv(contradicted, folder / "contradictions.csv")
    write_csv(pd.DataFrame(agreed.rankings, columns=rankings.COLUMNS), folder / "rankings.csv")
    write_csv(pd.DataFrame(agreed.deviations, columns=deviations.COLUMNS), folder / "deviations.csv")
    _write_pages(numbers, directory)
    return numbers


def judged(paper: Paper, results: Sequence[Result]) -> PaperNumbers:
    """Return the numbers that a paper states, with the verdicts on simulated values."""
    return stated_numbers(paper, scoreboard(paper, results))


def write_sensitivity(
    numbers: PaperNumbers, varied: Sequence[tuple[Alternative, PaperNumbers | None]], directory: Path
) -> None:
    """Write what alternatives change (``<paper>/sensitivity*.csv``), and the pages anew.

    Args:
        varied: the paper's numbers under each alternative, None for one that was not run.
    """
    import pandas as pd  # takes half a second, which parsing need not wait for

    base, folder = Read.of(numbers), directory / numbers.paper.name
    lines, rows = [base_line(base)], []
    for alternative, other in varied:
        if other is None:
            lines.append(not_run_line(alternative))
        else:
            lines.append(alternative_line(base, alternative, Read.of(other)))
            rows += row_lines(base, alternative, Read.of(other))
    write_csv(pd.DataFrame(lines, columns=sensitivity.COLUMNS), folder / "sensitivity.csv")
    write_csv(pd.DataFrame(rows, columns=sensitivity.ROW_COLUMNS), folder / "sensitivity_rows.csv")
    _write_pages(numbers, directory)


def _write_pages(numbers: PaperNumbers, directory: Path) -> None:
    folder = directory / numbers.paper.name
    write_whole(folder / "summary.md", summary_page(numbers, Closeness.of(numbers), read_sensitivity(folder)))
    _write_scoreboard_page(directory)


def read_papers(directory: Path) -> list[tuple[dict[str, str], Closeness]]:
    """Return the counts of each paper in a folder of results, and how close its numbers are met.

    Raises:
        MembenchError: a paper's ``totals.csv`` cannot be read.
    """
    files = sorted(directory.glob("*/totals.csv"))
    return [(row, read_closeness(path.parent)) for path in files for row in read_csv(path, columns=TOTALS_COLUMNS)]


def _write_scoreboard_page(directory: Path) -> None:
    summaries = [path.read_text() for path in sorted(directory.glob("*/summary.md"))]
    folders = sorted(path.parent for path in directory.glob("*/totals.csv"))
    contradicted = [line for folder in folders for line in contradictions.read_contradictions(folder)]
    write_whole(directory / "SCOREBOARD.md", scoreboard_page(read_papers(directory), summaries, contradicted))
