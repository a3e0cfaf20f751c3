"""A further paper, that of docs/experiment.md, is added as a folder and a module of its own; nothing else is edited."""

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from shutil import copytree, ignore_patterns

import pandas as pd
import pytest

from membench.core.record import Outcome
from membench.lab.cli.reproduce import Execution, reproduce
from membench.lab.papers.judging.numbers import Number
from membench.lab.papers.pages.results import needed_cells
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.loader import known_papers, load_paper
from membench.sweep.cells.run import run_cell
from tests.helpers.lab.papers import EXPERIMENTS
from tests.helpers.pages import code_of

FILES = {code.file: code.text for code in code_of("docs/experiment.md") if code.file}
MODULE = "experiments.example.metrics"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the papers with the further one, whose module can be imported by its name."""
    root = tmp_path_factory.mktemp("sixth")
    copytree(EXPERIMENTS, root / "experiments", ignore=ignore_patterns("__pycache__"))
    for file, text in FILES.items():
        path = root / file
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    spec = spec_from_file_location(MODULE, root / f"{MODULE.replace('.', '/')}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[MODULE] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield root
    del sys.modules[MODULE]


@pytest.fixture(scope="module")
def numbers(root: Path) -> tuple[Number, ...]:
    """Verdicts of its rows after `reproduce` has run its cells and written its results."""
    paper = load_paper(root / "experiments" / "example")
    cells = compose_cells(paper, needed_cells(paper))
    execution = Execution(run_cell, workers=1, stop=lambda: None)
    records, numbers = reproduce(paper, cells, execution, root / "results")
    assert len({record.configuration_hash for record in records.values()}) == 2
    assert {record.outcome for record in records.values()} == {Outcome.OK}
    return numbers.stated


def test_all_of_it_is_its_own_files() -> None:
    assert {str(Path(file).parent) for file in FILES} == {"experiments/example"}


def test_it_is_found_among_the_papers_and_these_stay_as_they_were(root: Path) -> None:
    folder = root / "experiments"
    assert known_papers(folder) == sorted([*known_papers(EXPERIMENTS), "example"])
    for path in EXPERIMENTS.rglob("*.yaml"):
        assert (folder / path.relative_to(EXPERIMENTS)).read_bytes() == path.read_bytes()


def test_each_of_its_rows_has_a_verdict(numbers: tuple[Number, ...]) -> None:
    assert [str(number.verdict) for number in numbers][-1] == "input"
    assert {str(number.verdict) for number in numbers[:-1]} <= {"reproduced", "better", "worse"}


def test_its_tables_and_the_scoreboard_are_written(numbers: tuple[Number, ...], root: Path) -> None:
    table = pd.read_csv(root / "results" / "example" / "table1.csv")
    assert list(table["metric"]) == ["memory", "memory_saving", "images_per_memory", "memory", "maps", "maps"]
    assert table["simulated_value"].notna().tolist() == [True, True, True, False, True, True]
    assert len(pd.read_csv(root / "results" / "example" / "scoreboard.csv")) == len(numbers) == 4
    assert "Example: a paper of three rows" in (root / "results" / "SCOREBOARD.md").read_text()


def test_its_own_metric_and_unit_are_used(numbers: tuple[Number, ...], root: Path) -> None:
    table = pd.read_csv(root / "results" / "example" / "table1.csv").set_index("metric")
    own = table.loc["images_per_memory"]
    assert own["unit"] == "images/MB"
    assert 0 < own["simulated_value"] < 64
