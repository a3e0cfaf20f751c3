"""Papers and published measurements of an installed package, checked: each is read, and a step of it is predicted."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from membench.conformance.package import Check, Finding, broken
from membench.conformance.results import require
from membench.core.configuration import ROOT
from membench.core.packages import added_packages
from membench.lab.papers.pages.results import needed_cells
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.loader import known_papers, load_paper
from membench.lab.validation.dataset import known_datasets, load_dataset
from membench.lab.validation.predicting import predict_rows
from membench.sweep.cells.run import run_cell

_FOLDER = "experiments"
_MEASUREMENTS = "validation"


def check_experiments(package: str) -> Iterator[Finding]:
    """Yield a finding for each check of a package's papers and data sets, as soon as it is made."""
    folder = added_packages()[package] / _FOLDER
    if not folder.is_dir():
        return
    for paper in known_papers(folder):
        for what, check in _of_paper(folder / paper):
            yield Finding(f"{_FOLDER}/{paper}", what, broken(check))
    for name in known_datasets(folder / _MEASUREMENTS):
        for what, check in _of_dataset(folder / _MEASUREMENTS, name):
            yield Finding(f"{_FOLDER}/{_MEASUREMENTS}/{name}", what, broken(check))


def _of_paper(folder: Path) -> Iterator[tuple[str, Check]]:
    yield "the name is free", partial(_check_name, folder.name, known_papers(ROOT / _FOLDER))
    yield "each number is answered once", partial(load_paper, folder)
    yield "a step is simulated", partial(_check_cell, folder)


def _of_dataset(folder: Path, name: str) -> Iterator[tuple[str, Check]]:
    yield "the name is free", partial(_check_name, name, known_datasets(ROOT / _FOLDER / _MEASUREMENTS))
    yield "its rows are read", partial(load_dataset, folder, name)
    yield "its first row is predicted", partial(_check_row, folder, name)


def _check_name(name: str, taken: Sequence[str]) -> None:
    require(name not in taken, f"membench has {name} itself, which counts; choose another name")


def _check_cell(folder: Path) -> None:
    paper = load_paper(folder)
    configurations = list(compose_cells(paper, needed_cells(paper)).values())
    require(bool(configurations), "no row needs a step")
    record = run_cell(configurations[0])
    require(not record.outcome.is_failure, record.reason)


def _check_row(folder: Path, name: str) -> None:
    rows = load_dataset(folder, name).rows
    [prediction] = predict_rows(rows[:1])
    require(prediction.reason == "", prediction.reason)
