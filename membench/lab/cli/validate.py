"""Predict measurements that others published, and write how far off the predictions are.

    membench validate                             every data set of experiments/validation
    membench validate dataset=litgpt              one; what the results have of the others stays
    membench validate dataset=schedtune rows=20   20 rows of one, spread over it: prints the errors, writes no results
    membench validate dataset=torchtune row=3     one row by its number in the results, and its operators' times
    membench validate leave_out=h200              rows on an H200, with rates that are fitted without its chip: prints
                                                  the errors, writes no results
    membench validate rerun=all workers=4

Writes results/validation: a table for each data set, with a line for each row; a summary; a page. Draws
paper_figs/validation. A prediction is kept in outputs/records/validation and made again when the code or a constant
that decides it has changed. Needs a checkout of the repository, and timm and transformers:
pip install 'membench[zoo,tuning]'.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from membench.cli.operators import operator_lines
from membench.cli.words import each, read_count, read_options, refuse_flags
from membench.core import configuration
from membench.core.checks import choice
from membench.core.configuration import ROOT
from membench.core.errors import MembenchError
from membench.core.files import shown
from membench.sweep.results.records import Rerun

if TYPE_CHECKING:
    from membench.lab.validation.dataset import DataSet
    from membench.lab.validation.errors import Summary

_Row = TypeVar("_Row")

DATASETS = ROOT / "experiments" / "validation"
RESULTS = ROOT / "results" / "validation"
RECORDS = ROOT / "outputs" / "records" / "validation"


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
        rerun: rows with a current prediction run again with ``all``.
    """

    dataset: tuple[str, ...] = ()
    rows: int | None = None
    leave_out: str = ""
    row: int | None = None
    workers: int = 2
    rerun: Rerun = Rerun.MISSING


def parse(words: Sequence[str]) -> Options:
    """Return the settings that the words are."""
    refuse_flags(words, known=())
    from membench.lab.validation.dataset import known_datasets

    known = known_datasets(DATASETS)
    settings = Options(
        **read_options(
            words,
            {
                "dataset": each(partial(choice, known, "dataset")),
                "rows": partial(read_count, "rows"),
                "leave_out": partial(choice, configuration.names("device"), "leave_out"),
                "row": _read_number,
                "workers": partial(read_count, "workers"),
                "rerun": partial(choice, (Rerun.MISSING, Rerun.ALL), "rerun"),
            },
        )
    )
    if settings.row is not None and (len(settings.dataset) != 1 or settings.rows is not None):
        raise MembenchError("row is one of a single data set, as in: membench validate dataset=torchtune row=3")
    return settings


def _read_number(text: str) -> int:
    if not text.isdecimal():
        raise MembenchError(f"row is the number of a row in the results, such as 3, not {text!r}")
    return int(text)


def run(settings: Options) -> int:
    """Predict the rows, print the errors, write and draw them if all rows ran, and return the exit code."""
    # pandas and torch take seconds, which a wrong word need not wait for
    from membench.lab.validation.dataset import known_datasets, load_dataset
    from membench.lab.validation.errors import comparisons, summaries
    from membench.lab.validation.page import write_page
    from membench.lab.validation.predicting import predict_rows
    from membench.lab.validation.predictions import Predictions
    from membench.lab.validation.tables import write_rows, write_summary

    known = known_datasets(DATASETS)
    datasets = [load_dataset(DATASETS, name) for name in settings.dataset or known]
    if settings.leave_out:
        datasets = _leaving_out(settings.leave_out, datasets)
    if settings.row is not None:
        print("\n".join(_row_lines(datasets[0], settings.row)))
        return 0
    chosen = [row for data in datasets for row in _spread(data.rows, settings.rows)]
    predictions = Predictions(RECORDS, predict_rows)
    made = iter(predictions.of(chosen, workers=settings.workers, again=settings.rerun is Rerun.ALL))
    compared = [(data, comparisons(data, _spread(data.rows, settings.rows), made)) for data in datasets]
    found = [line for data, rows in compared for line in summaries(data, rows)]
    print("\n".join(_lines(found)))
    if settings.rows is not None or settings.leave_out:
        return 0
    for data, rows in compared:
        write_rows(data, rows, RESULTS)
    write_summary(found, RESULTS, known)
    write_page(compared, found, DATASETS, RESULTS, known)
    print(f"every row and the summary in {shown(RESULTS)}, figures in paper_figs/validation")
    return subprocess.run([sys.executable, "-m", "paper_figs", "validation"], cwd=ROOT, check=False).returncode


def _leaving_out(card: str, datasets: "Sequence[DataSet]") -> "list[DataSet]":
    """Return the data sets' rows on a card's chip, with rates that are fitted without that chip."""
    from membench.lab.calibrate.kernel_constants import is_same_chip
    from membench.lab.calibrate.kernel_rates import fitted_values, rates_without

    boards = {name for name in {row.device for data in datasets for row in data.rows} if is_same_chip(card, name)}
    chosen = {data.name: [row for row in data.rows if row.device in boards] for data in datasets}
    if not any(chosen.values()):
        raise MembenchError(f"no data set has rows on {card}; leave out a card that one has, such as h200")
    rates = fitted_values(rates_without(card, DATASETS))
    return [
        replace(data, rows=tuple(row.with_rates(rates) for row in chosen[data.name]))
        for data in datasets
        if chosen[data.name]
    ]


def _row_lines(data: "DataSet", number: int) -> Iterator[str]:
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
    yield from (f"  {name:<20} {value}" for name, value in row.values.items() if name not in row.measured)
    for name, measured in row.measured.items():
        found = values.get(name)
        if found is not None:
            yield f"  {name:<20} {measured:,.6g} measured, {found:,.6g} predicted ({found / measured - 1:+.1%})"
    yield ""
    yield from operator_lines(operators, values["step_time_s"])


def _spread(rows: Sequence[_Row], most: int | None) -> Sequence[_Row]:
    """Return at most so many rows, evenly spread."""
    if most is None or most >= len(rows):
        return rows
    return [rows[index * len(rows) // most] for index in range(most)]


def _lines(found: "Sequence[Summary]") -> list[str]:
    """Return a line for each data set and quantity, of the judged rows and of those fitted on."""
    lines = [
        f"{'data set':<12} {'part':<8} {'quantity':<15} {'rows':>5} {'median':>8} {'p90':>8} {'bias':>8} {'fits':>8} "
        f"not run"
    ]
    for line in found:
        if line.part in ("judged", "fitted", "changes"):
            ours = (
                [
                    f"{line.ours.rows:>5}",
                    *(f"{100 * value:7.1f}%" for value in (line.ours.median, line.ours.p90, line.ours.bias)),
                ]
                if line.ours
                else [f"{0:>5}", *[" " * 8] * 3]
            )
            fits = "" if line.fits_right is None else f"{100 * line.fits_right:.1f}%"
            lines.append(
                " ".join([f"{line.dataset:<12} {line.part:<8} {line.quantity:<15}", *ours, f"{fits:>8} {line.not_run}"])
            )
    return lines
