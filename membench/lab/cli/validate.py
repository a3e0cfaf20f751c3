"""Predict measurements that others published, and write how far off the predictions are.

    membench validate                             every data set of experiments/validation
    membench validate dataset=litgpt              one; what the results have of the others stays
    membench validate dataset=schedtune rows=20   20 rows of one, spread over it: prints the errors, writes no results
    membench validate dataset=torchtune row=3     one row by its number in the results, and its operators' times
    membench validate leave_out=h200              rows on an H200, with rates that are fitted without its chip: prints
                                                  the errors, those of single kernels on it first, writes no results
    membench validate rerun=all workers=4
    membench validate rerun=none                  predicts nothing: the page and all else from the tables that are there

Writes results/validation: a table for each data set, with a line for each row; a summary; a page. Writes the same in
results/league of data sets whose rows others have predicted too, and the intervals of predictions, conf/intervals.yaml.
Draws paper_figs/validation. A prediction is kept in outputs/records/validation
and made again when the code or a constant that decides it has changed; those of data sets that are not named are taken
from their tables. A data set of an installed package runs where it is named, and its table is in outputs/validation.
Needs a checkout of the repository, and timm and transformers: pip install 'membench[zoo,tuning]'.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from membench.cli.operators import operator_elements
from membench.cli.words import NameIn, read_options, refuse_flags
from membench.core.checks import choice
from membench.core.configuration import ROOT
from membench.core.document import Element, Facts, Table
from membench.core.errors import MembenchError
from membench.core.files import shown
from membench.core.packages import added_folders
from membench.core.terminal import show
from membench.steps.predicted.intervals import INTERVALS

if TYPE_CHECKING:
    from membench.lab.validation.dataset import DataSet
    from membench.lab.validation.errors import Comparison, Summary

_Row = TypeVar("_Row")

DATASETS = ROOT / "experiments" / "validation"
RESULTS = ROOT / "results" / "validation"
LEAGUE = ROOT / "results" / "league"
RECORDS = ROOT / "outputs" / "records" / "validation"


def _folders() -> dict[str, Path]:
    """Return the folder of each data set by its name, those of added packages first; a name of ours is ours."""
    from membench.lab.validation.dataset import known_datasets

    added = [folder / DATASETS.name for folder in added_folders("experiments")]
    return {name: folder for folder in [*added, DATASETS] for name in known_datasets(folder)}


def _read_dataset(name: str, text: str) -> str:
    return choice(_folders(), name, text)


def _read_row(_: str, text: str) -> int:
    if not text.isdecimal():
        raise MembenchError(f"row is the number of a row in the results, such as 3, not {text!r}")
    return int(text)


@dataclass(frozen=True)
class Options:
    """Options of the command.

    Attributes:
        dataset: names; empty for all.
        rows: the most rows of each data set, spread over it; None: all.
        leave_out: card whose chip's measurements are left out of the fit of kernels' rates, and whose rows alone are
            predicted; empty: none.
        row: number of a single row of a single data set, of which the operators are printed; None: there is none.
        workers: processes at a time.
        rerun: ``all``: rows with a current prediction run again; ``none``: no row runs, predictions are the tables'.
    """

    dataset: tuple[Annotated[str, _read_dataset], ...] = ()
    rows: int | None = None
    row: Annotated[int | None, _read_row] = None
    leave_out: Annotated[str, NameIn(("device",))] = ""
    workers: int = 2
    rerun: Literal["missing", "all", "none"] = "missing"


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    refuse_flags(words, known=())
    options = Options(**read_options(words, Options))
    if options.row is not None and (len(options.dataset) != 1 or options.rows is not None):
        raise MembenchError("row is one of a single data set, as in: membench validate dataset=torchtune row=3")
    return options


def run(options: Options) -> int:
    """Predict the rows, print the errors, write and draw them if all rows ran, and return the exit code."""
    # pandas and torch take seconds, which a wrong word need not wait for
    from membench.lab.validation.dataset import known_datasets, load_dataset
    from membench.lab.validation.errors import summaries

    known, folders = known_datasets(DATASETS), _folders()
    datasets = [load_dataset(folders[name], name) for name in options.dataset or known]
    if options.row is not None:
        show(_of_row(datasets[0], options.row))
        return 0
    if options.leave_out:
        datasets = _leaving_out(options.leave_out, datasets)
    compared = _compared(datasets, options)
    show([_table([line for data, rows in compared for line in summaries(data, rows)])])
    if options.rows is not None or options.leave_out:
        return 0
    if added := [(data, rows) for data, rows in compared if data.name not in known]:
        _write_added(added)
    compared = [each for each in compared if each not in added]
    if not compared:
        return 0
    names = [data.name for data in datasets]
    others = [name for name in known if name not in names and (RESULTS / f"{name}.csv").exists()]
    kept = _compared([load_dataset(DATASETS, name) for name in others], Options(rerun="none"))
    _write(sorted([*compared, *kept], key=lambda each: known.index(each[0].name)))
    print(f"every row and the summary in {shown(RESULTS)} and {shown(LEAGUE)}, intervals in {shown(INTERVALS)}")
    return subprocess.run([sys.executable, "-m", "paper_figs", "validation"], cwd=ROOT, check=False).returncode


def _compared(datasets: "Sequence[DataSet]", options: Options) -> "list[tuple[DataSet, Sequence[Comparison]]]":
    """Return data sets with their rows and predictions, which are made, or read from the tables."""
    from membench.lab.validation.errors import comparisons
    from membench.lab.validation.predicting import predict_rows
    from membench.lab.validation.predictions import Predictions
    from membench.lab.validation.tables import as_written, read_predictions

    if options.rerun == "none":
        kept = [each for data in datasets for each in _spread(read_predictions(data, RESULTS), options.rows)]
        made = iter(kept)
    else:
        chosen = [row for data in datasets for row in _spread(data.rows, options.rows)]
        predictions = Predictions(RECORDS, predict_rows)
        made = map(as_written, predictions.of(chosen, workers=options.workers, again=options.rerun == "all"))
    return [(data, comparisons(data, _spread(data.rows, options.rows), made)) for data in datasets]


def _write(compared: "Sequence[tuple[DataSet, Sequence[Comparison]]]") -> None:
    """Write the results of all data sets, and the intervals that follow from them."""
    from membench.lab.validation.errors import summaries
    from membench.lab.validation.intervals import with_intervals, write_intervals
    from membench.lab.validation.league import write_league
    from membench.lab.validation.page import write_page
    from membench.lab.validation.tables import write_rows, write_summary

    compared = with_intervals(compared)
    found = [line for data, rows in compared for line in summaries(data, rows)]
    for data, rows in compared:
        write_rows(data, rows, RESULTS)
    write_summary(found, RESULTS)
    write_page(compared, found, RESULTS)
    write_league(compared, LEAGUE)
    write_intervals(compared, INTERVALS)


def _write_added(compared: "Sequence[tuple[DataSet, Sequence[Comparison]]]") -> None:
    """Write the tables of data sets that packages add; they take no part in intervals and pages of the repository."""
    from membench.lab.validation.tables import write_rows

    folder = Path("outputs", "validation")
    for data, rows in compared:
        write_rows(data, rows, folder)
    print(f"every row of added data sets in {shown(folder)}")


def _leaving_out(card: str, datasets: "Sequence[DataSet]") -> "list[DataSet]":
    """Return the data sets' rows on a card's chip, with rates that are fitted without that chip.

    Prints the errors of the single kernels that were measured on it.
    """
    from membench.lab.calibrate.kernel_constants import is_same_chip
    from membench.lab.calibrate.kernel_rates import fitted_values, rates_without
    from membench.lab.calibrate.measured_kernels import error_lines, measured_kernels

    boards = {name for name in {row.device for data in datasets for row in data.rows} if is_same_chip(card, name)}
    chosen = {data.name: [row for row in data.rows if row.device in boards] for data in datasets}
    if not any(chosen.values()):
        raise MembenchError(f"no data set has rows on {card}; leave out a card that one has, such as h200")
    rates = rates_without(card, DATASETS)
    of_chip = [kernel for kernel in measured_kernels() if is_same_chip(card, kernel.device)]
    print("\n".join([*error_lines(of_chip, rates), ""]))
    return [
        replace(data, rows=tuple(row.with_rates(fitted_values(rates)) for row in chosen[data.name]))
        for data in datasets
        if chosen[data.name]
    ]


def _of_row(data: "DataSet", number: int) -> Iterator[Element]:
    """Yield what was published of a row, what is predicted, and the operators of its step."""
    from membench.lab.validation.errors import comparisons
    from membench.lab.validation.predicting import operators_of, predict_rows

    row = next((row for row in data.rows if row.number == number), None)
    if row is None:
        raise MembenchError(f"{data.name} has rows 0 to {len(data.rows) - 1}, not {number}")
    [compared] = comparisons(data, [row], iter(predict_rows([row])))
    values = compared.prediction.values
    if "step_time_s" not in values:
        raise MembenchError(f"row {number} has no predicted time: {compared.prediction.reason or 'it does not fit'}")
    operators = operators_of(row)
    yield f"{data.name}, row {number} on {row.device}"
    known = [(name, str(value)) for name, value in row.values.items() if name not in row.measured]
    for name, measured in row.measured.items():
        found = values.get(name)
        if found is not None:
            known.append((name, f"{measured:,.6g} measured, {found:,.6g} predicted ({found / measured - 1:+.1%})"))
    yield Facts(tuple(known))
    yield ""
    yield from operator_elements(operators, values["step_time_s"])


def _spread(rows: Sequence[_Row], most: int | None) -> Sequence[_Row]:
    """Return at most so many rows, evenly spread."""
    if most is None or most >= len(rows):
        return rows
    return [rows[index * len(rows) // most] for index in range(most)]


def _table(found: "Sequence[Summary]") -> Table:
    """Return a row for each data set and quantity, of the judged rows and of those fitted on."""
    rows: list[tuple[str, ...]] = [("data set", "part", "quantity", "rows", "median", "p90", "bias", "fits", "not run")]
    for line in found:
        if line.part in ("judged", "fitted", "changes"):
            ours = line.ours
            errors = [f"{100 * value:.1f}%" for value in (ours.median, ours.p90, ours.bias)] if ours else [""] * 3
            fits = "" if line.fits_right is None else f"{100 * line.fits_right:.1f}%"
            names = (line.dataset, line.part, line.quantity)
            rows.append((*names, str(ours.rows if ours else 0), *errors, fits, str(line.not_run)))
    return Table(tuple(rows), keys=3)
