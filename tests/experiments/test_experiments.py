"""Every paper's experiment files: they compose, and account for every number that the paper states."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose

from membench.core.configuration import ROOT, read
from membench.core.record import LARGEST, configuration_hash
from membench.lab.cli.trainings import compose_trainings
from membench.lab.papers.judging.sensitivity import read_sensitivity
from membench.lab.papers.pages.results import evaluate_all, needed_cells, write_results
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.experiment import Paper, PaperCell, Quantity, Row, framework_of
from membench.lab.papers.reading.loader import load_paper, read_reference
from membench.sweep.cells.run import run_cells
from membench.sweep.composition import cell_configuration, hydra_composition
from tests.helpers.lab.papers import EXPERIMENTS


def test_each_reference_row_is_accounted_for_once(paper: Paper) -> None:
    reference = read_reference(EXPERIMENTS / paper.name / "reference.csv")
    answered = Counter(row.line for experiment in paper.experiments for row, _ in experiment.rows if row.line)
    assert answered == {row.line: 1 for row in reference}


def test_claims_are_numbered_without_a_gap(paper: Paper) -> None:
    rows = read_reference(EXPERIMENTS / paper.name / "reference.csv")
    numbers = [int(row.claim_id[1:]) for row in rows if row.claim_id]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_what_is_not_judged_has_a_reason(paper: Paper) -> None:
    for experiment in paper.experiments:
        for row, answer in experiment.rows:
            assert answer.value or answer.trained or len(answer.input or answer.not_run) > 3, row


def test_judged_rows_have_a_unit_that_is_known(paper: Paper) -> None:
    judged = [row for experiment in paper.experiments for row, answer in experiment.rows if answer.value]
    assert {row.unit for row in judged} <= paper.units.keys()


def test_every_cell_composes(paper: Paper) -> None:
    cells = needed_cells(paper)
    configurations = compose_cells(paper, cells)
    assert len(configurations) == len(set(cells)) >= (6 if paper.name == "offloading" else 40)
    for cell, configuration in configurations.items():
        assert configuration["batch_size"] == LARGEST or configuration["batch_size"] > 0
        assert configuration["backend"]["name"] == "simulated"
        assert configuration["model"]["name"] == paper.models[cell.model]["configuration"]
        system = paper.systems[cell.system]
        for option, value in system.get("set", {}).items():
            assert configuration["strategy"][option] == value


def _value(value: Any) -> str:
    """Return a value as Hydra's command line has it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_value(each)}" for name, each in value.items()) + "}"
    return "[" + ",".join(map(_value, value)) + "]" if isinstance(value, list) else str(value)


def _overrides(paper: Paper, cell: PaperCell) -> list[str]:
    """Return the options that run a cell on the command line."""
    system = paper.systems[cell.system]
    of_model = paper.models[cell.model].get("set", {})
    words = [
        f"model={paper.models[cell.model]['configuration']}",
        f"strategy={system['strategy']}",
        f"framework={framework_of(paper.models[cell.model], system)}",
        f"device={paper.devices[cell.device]}",
        *([f"cluster={paper.clusters[cell.device]}"] if cell.device in paper.clusters else []),
        *(f"cluster.{option}={value}" for option, value in system.get("cluster", {}).items()),
        *([f"budget='{budget}'"] if (budget := cell.budget or system.get("budget")) else []),
        *([f"{key}={system[key]}" for key in ("micro_batch", "exchange", "precision") if key in system]),
        *([f"machine={paper.machines[cell.device]}"] if cell.device in paper.machines else []),
        *([f"optimizer={system['optimizer']['name']}"] if "optimizer" in system else []),
        *(f"optimizer.{option}={value}" for option, value in system.get("optimizer", {}).items()),
        *(f"++model.{option}={_value(value)}" for option, value in of_model.items()),
        *(f"strategy.{option}={value}" for option, value in system.get("set", {}).items()),
        *([f"metrics={paper.step_metrics}"] if paper.step_metrics else []),
    ]
    return words if cell.batch_size is None else [*words, f"batch_size={cell.batch_size}"]


@pytest.mark.slow
def test_cells_are_what_hydra_composes_from_the_same_values(paper: Paper) -> None:
    """For few cells in which every model, system, device and budget occurs: each takes Hydra a quarter of a second."""
    configurations = compose_cells(paper, needed_cells(paper))
    names = {cell: {cell.model, cell.system, cell.device, cell.budget} for cell in configurations}
    missing = set().union(*names.values())
    with hydra_composition():
        while missing:
            cell = max(names, key=lambda cell: len(names[cell] & missing))
            missing -= names[cell]
            assert cell_configuration(compose("config", _overrides(paper, cell))) == configurations[cell]


@pytest.mark.slow
def test_every_experiment_runs_on_a_small_network(paper: Paper, tmp_path: Path) -> None:
    """In a fast mode: each cell with its own system, device and options, but LeNet and a batch of four."""
    small = {"model": read("model", "lenet"), "batch_size": 4}
    cells = {cell: found | small for cell, found in compose_cells(paper, needed_cells(paper)).items()}
    distinct = {configuration_hash(found): found for found in cells.values()}
    made = dict(zip(distinct, run_cells(distinct.values()), strict=True))
    failed = {record.reason for record in made.values() if record.outcome.is_failure}
    assert not failed
    records = {cell: made[configuration_hash(found)] for cell, found in cells.items()}
    results = evaluate_all(paper, records, {})
    write_results(paper, results, tmp_path)
    assert {path.stem for path in (tmp_path / paper.name).glob("*.csv")} >= results.keys()


def test_remarks_are_about_rows_that_exist(paper: Paper) -> None:
    rows: list[Row] = [row for experiment in paper.experiments for row, _ in experiment.rows]
    for remark in (
        *paper.contradictions,
        *paper.inconsistencies,
        *paper.causes,
        *paper.fitted,
        *paper.held_out,
        *paper.cannot_fail,
        *paper.choices,
    ):
        assert any(remark.where.matches(row) for row in rows), remark.text


def test_no_paper_value_is_in_an_experiment_file(paper: Paper) -> None:
    """A quantity does not contain the number that it is judged by; a factor of 1 is the default."""
    for experiment in paper.experiments:
        for row, answer in experiment.rows:
            if answer.value:
                assert row.value not in set(_values(answer.value)) - {1, None}, row


def test_batch_sizes_are_numbers_or_named_by_a_model(paper: Paper) -> None:
    named = {name for model in paper.models.values() for name in model.get("batch_sizes", ())}
    values = [answer.value for experiment in paper.experiments for _, answer in experiment.rows if answer.value]
    for value in values:
        sizes = (value.cell.get("batch_size"), value.reference.get("batch_size"), *value.over.get("batch_size", ()))
        assert {size for size in sizes if isinstance(size, str)} <= named | {LARGEST}


def _values(quantity: Quantity) -> Iterator[Any]:
    """Yield every value in a quantity."""
    yield from (quantity.times, *quantity.cell.values(), *quantity.reference.values())
    for values in quantity.over.values():
        yield from values


def test_what_is_trained_composes_and_is_named_once(paper: Paper) -> None:
    trainings = compose_trainings(paper.trainings)
    hashes = [configuration_hash(run) for training in trainings for run in training.runs]
    assert len(set(hashes)) == len(hashes)
    for training in trainings:
        assert len(training.runs) >= 3
        assert paper.trainings[training.name]["target_accuracy"] == training.target_accuracy
        assert {run["backend"]["name"] for run in training.runs} == {"cpu"}
    for experiment in paper.experiments:
        for row, answer in experiment.rows:
            if answer.trained:
                assert {*answer.trained.trainings} <= {*paper.trainings}
                assert answer.direction_only or answer.trained.loses_to or row.line is None


@pytest.mark.slow
def test_every_choice_has_an_alternative_that_reads_and_composes(paper: Paper) -> None:
    assert {choice.name for choice in paper.choices} <= {each.choice for each in paper.alternatives}
    for alternative in paper.alternatives:
        assert bool(alternative.not_run) != bool(alternative.source), alternative
        read = load_paper(EXPERIMENTS / paper.name, alternative)
        assert compose_cells(read, needed_cells(read))
        assert alternative.not_run or read != replace(paper, alternatives=read.alternatives), alternative


def test_a_choice_that_decides_nothing_is_not_declared(paper: Paper) -> None:
    lines = [line for line in read_sensitivity(ROOT / "results" / paper.name) if line["values_changed"]]
    decides = {line["choice"] for line in lines if int(line["values_changed"])}
    assert {choice.name for choice in paper.choices} & {line["choice"] for line in lines} <= decides
