"""A published table is not older than the code that decides it, or is named as older, with the reason.

A row of each table of predictions is made again. tests/published_rows.yaml says which: one that comes out quickly, and
of a table that is named as older one that comes out otherwise today. Other rows of a table may be older unseen. Not
looked at: what was measured, predictions that stay as they were made blind, and results/joint, sharded and compiled.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from membench.cli import frontier
from membench.core.configuration import ROOT, read_options
from membench.core.record import Configuration
from membench.core.tables import format_number, read_csv
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.loader import load_paper
from membench.lab.papers.reading.quantities import cells_of, evaluate
from membench.lab.validation.dataset import load_dataset
from membench.lab.validation.predicting import predict_rows
from membench.sweep.cells.run import run_cell

RESULTS, EXPERIMENTS = ROOT / "results", ROOT / "experiments"
ENTRIES: dict[str, dict[str, Any]] = read_options(ROOT / "tests" / "published_rows.yaml")
PAPERS = sorted(path.parent.name for path in EXPERIMENTS.glob("*/paper.yaml"))
OLDER = {table: entry["older"] for table, entry in ENTRIES.items() if "older" in entry}


def _validation(table: str, number: int) -> tuple[Any, Any]:
    """Return what a table of a data set has of a row, and what is predicted today."""
    lines = {line["quantity"]: line for line in read_csv(RESULTS / f"{table}.csv") if line["row"] == str(number)}
    rows = load_dataset(EXPERIMENTS / "validation", Path(table).name).rows
    [prediction] = predict_rows([row for row in rows if row.number == number])
    assert lines and not prediction.reason
    names = [name for name, line in lines.items() if line["simulated_value"]]
    return (
        {name: lines[name]["simulated_value"] for name in names},
        {name: format_number(prediction.values.get(name)) for name in names},
    )


@cache
def _steps() -> dict[str, Configuration]:
    return {job.table.stem: job.step for job in frontier.parse([]).jobs}


def _frontier(table: str, number: int) -> tuple[Any, Any]:
    """Return time and memory of eager execution, in the table and today; the row's number is not used."""
    [line] = [line for line in read_csv(RESULTS / f"{table}.csv") if line["strategy"] == "eager"]
    metrics = run_cell(_steps()[Path(table).name]).metrics
    found = (format_number(metrics["oracular_step_time_s"]), str(int(metrics["required_memory_bytes"])))
    return (line["step_time_s"], line["peak_bytes"]), found


def _paper(table: str, number: int) -> tuple[Any, Any]:
    """Return the value of a row of a paper's table or figure, in the table and today."""
    paper = load_paper(EXPERIMENTS / Path(table).parent)
    if Path(table).name == "sensitivity":  # which takes minutes to make: its alternatives alone
        published = {line["alternative"] for line in read_csv(RESULTS / f"{table}.csv")} - {"as chosen"}
        return published, {each.name for each in paper.alternatives}
    [experiment] = [each for each in paper.experiments if each.name == Path(table).name]
    row, answer = experiment.rows[number]
    cells = compose_cells(paper, list(cells_of(paper, row, answer)))
    records = {cell: run_cell(configuration) for cell, configuration in cells.items()}
    found = evaluate(paper, row, answer, records).value
    return read_csv(RESULTS / f"{table}.csv")[number]["simulated_value"], format_number(found)


def _made_again(table: str) -> tuple[Any, Any]:
    of_folder: dict[str, Callable[[str, int], tuple[Any, Any]]] = {"validation": _validation, "frontiers": _frontier}
    return of_folder.get(Path(table).parent.name, _paper)(table, ENTRIES[table].get("row", 0))


@pytest.mark.slow
@pytest.mark.parametrize("table", sorted(ENTRIES))
def test_a_row_is_today_what_its_table_has_unless_it_is_named_as_older(table: str) -> None:
    published, today = _made_again(table)
    if table in OLDER:
        assert today != published, f"{table} is not older than the code: take it out of tests/published_rows.yaml"
    else:
        assert today == published, f"make {table} again, or name it in tests/published_rows.yaml and docs/choices.md"


def test_each_table_of_predictions_has_an_entry() -> None:
    tables = {f"validation/{path.stem}" for path in (RESULTS / "validation").glob("*.csv")} - {"validation/summary"}
    assert tables <= set(ENTRIES)
    committed = read_options(frontier.COMMITTED)["batch_sizes"]
    names = {name: [table for table in ENTRIES if table.startswith(f"frontiers/{name}_")] for name in committed}
    assert all(names.values())
    cards = {card for of_network in committed.values() for card in of_network}
    assert all(any(table.endswith(f"_{card}") for tables in names.values() for table in tables) for card in cards)
    for paper in PAPERS:
        assert f"{paper}/sensitivity" in ENTRIES
        assert len([table for table in ENTRIES if Path(table).parent.name == paper]) >= 2


def test_what_is_named_as_older_is_listed_for_readers() -> None:
    section = (ROOT / "docs" / "choices.md").read_text().partition("## Results older than the code")[2]
    named = set(re.findall(r"`(?:results/)?([\w/]+)", section))
    for table in OLDER:
        assert {table, Path(table).name, Path(table).parent.name} & named, table
