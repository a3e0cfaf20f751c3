"""Data sets of published measurements: every one loads, and its rows are what the tables contain."""

import csv
from pathlib import Path

import pytest

from membench.core import configuration
from membench.core.configuration import ROOT
from membench.core.errors import MembenchError
from membench.lab.validation.dataset import FITTED, known_datasets, load_dataset
from membench.lab.validation.rows import QUANTITIES
from membench.sweep.cells.model import Model

FOLDER = ROOT / "experiments" / "validation"
DATASETS = known_datasets(FOLDER)


@pytest.mark.parametrize("name", DATASETS)
def test_every_row_of_a_table_becomes_a_step_on_a_device_of_ours(name: str) -> None:
    dataset = load_dataset(FOLDER, name)
    lines = [line for line in (FOLDER / f"{name}.csv").read_text().splitlines() if line[:1] not in ("#", "")]
    assert len(dataset.rows) == len(list(csv.DictReader(lines)))
    devices = configuration.names("device")
    for row in dataset.rows:
        assert row.device in devices
        assert row.measured.keys() <= set(QUANTITIES) and min(row.measured.values(), default=1) > 0
        if row.reason:
            continue
        assert row.measured or dataset.has_limit
        assert row.next_batch_size is None or row.next_batch_size > row.batch_size
        assert "{" not in str(row.step["model"]["module"].get("name", ""))
        Model.from_configuration(row.step["model"])


def test_the_rows_that_constants_were_fitted_on_exist() -> None:
    for name, fitted in configuration.read_options(FOLDER / FITTED).items():
        dataset = load_dataset(FOLDER, name)
        for each in fitted:
            values = {key: value for key, value in each.items() if key != "quantity"}
            assert any(row.has(values) for row in dataset.rows)
        for quantity in dataset.quantities:
            assert not all(dataset.is_fitted(row, quantity) for row in dataset.rows)


def test_values_of_a_row_fill_its_description(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("net,n,gpu,ms,side\nresnet18,8,T,2.5,64\nresnet34,16,T,,64\n")
    (tmp_path / FITTED).write_text("mine: [{network: resnet34}]\n")
    (tmp_path / "mine.yaml").write_text(
        "title: mine\nsource: me\nrows: mine.csv\n"
        "columns: {network: net, batch_size: n, side: side}\n"
        "devices: {column: gpu, names: {T: t4}}\n"
        "measured: {step_time_s: {column: ms, unit: 1.0e-3}}\n"
        "ladder: [32, 16, 8]\nprecision: fp32\noptimizer: null\nchannels_last: false\n"
        'model: {module: {_target_: "torchvision.models.{network}"}, loss: null, input_shape: [3, "{side}", "{side}"], '
        "classes: 10}\n"
    )
    first, second = load_dataset(tmp_path, "mine").rows
    assert first.step["model"]["module"] == {"_target_": "torchvision.models.resnet18"}
    assert first.step["model"]["input_shape"] == [3, 64, 64]
    assert (first.device, first.batch_size, first.next_batch_size) == ("t4", 8, 16)
    assert first.measured == {"step_time_s": 0.0025} and not second.measured
    dataset = load_dataset(tmp_path, "mine")
    assert [dataset.is_fitted(row, "step_time_s") for row in (first, second)] == [False, True]


def test_an_unknown_data_set_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(MembenchError, match="schedtune"):
        load_dataset(FOLDER, "schedtun")


@pytest.mark.parametrize("content", ["", "# a comment\n", "model,batch_size\n"])
def test_a_table_without_rows_is_refused(content: str, tmp_path: Path) -> None:
    for path in FOLDER.glob("*.yaml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    name = DATASETS[0]
    (tmp_path / f"{name}.csv").write_text(content)
    with pytest.raises(MembenchError, match=f"{name}.csv has no rows; add the published ones"):
        load_dataset(tmp_path, name)
