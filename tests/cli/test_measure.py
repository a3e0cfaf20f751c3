"""`membench measure`, with made-up cells."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from membench.cli import measure
from membench.cli.main import main
from membench.cli.measure import CellRunner, Options, cell_of, measure_limits, measure_strategies, parse
from membench.core import configuration
from membench.core.configuration import ROOT
from membench.core.errors import MembenchError
from membench.core.record import Outcome, Record
from membench.sweep.results.records import Records
from tests.helpers.sweep.jobs import record_of

CAPACITY_BYTES = 1000


def by_batch(cell: dict[str, Any]) -> Record:
    """A cell that needs 100 bytes and 2 an image."""
    required = 100 + 2 * cell["batch_size"]
    outcome = Outcome.OK if required <= CAPACITY_BYTES else Outcome.OUT_OF_MEMORY
    values = {"required_memory_bytes": float(required)}
    if outcome is Outcome.OK:
        values |= {"peak_memory_bytes": float(required), "images_per_s": 10.0}
    return record_of(cell, outcome, **values)


def run_of(tmp_path: Path, requested: list[Any], settings: Options) -> CellRunner:
    def answer(cell: dict[str, Any]) -> Record:
        requested.append((cell["model"]["name"], cell["batch_size"], cell["strategy"]["_target_"].rpartition(".")[2]))
        return by_batch(cell)

    return CellRunner(settings, Records(tmp_path / "records", answer), tmp_path, CAPACITY_BYTES)


def test_strategies_and_baselines_run_at_the_batch_size_of_the_model_and_at_one_that_fills_the_card(
    tmp_path: Path,
) -> None:
    requested: list[Any] = []
    measure_strategies(run_of(tmp_path, requested, parse(["models=alexnet", "strategies=pytorch,eager"])))
    table = pd.read_csv(tmp_path / "strategies-alexnet.csv", dtype=str, keep_default_na=False)
    usual = configuration.read("model", "alexnet")["batch_size"]
    assert set(table["batch_size"]) == {str(usual), "448"}  # 100 + 2 * 448 = 996
    assert set(table["system"]) == {"pytorch", "eager"}
    assert [batch for _, batch, system in requested if system == "Eager"] == [16, 32, 448, 464, usual]
    assert list(table[table["metric"] == "images_per_s_over_eager"]["measured_value"]) == ["1"] * 4


def test_limits_are_the_largest_batch_and_the_greatest_depth(tmp_path: Path) -> None:
    def by_depth(cell: dict[str, Any]) -> Record:
        depth = cell["model"]["module"].get("depth", 0)
        return record_of(
            cell,
            Outcome.OK if depth * cell["batch_size"] <= 32_000 else Outcome.OUT_OF_MEMORY,
            peak_memory_bytes=1.0,
            images_per_s=1.0,
        )

    settings = parse(["task=limits", "models=vgg16", "strategies=eager"])
    run = CellRunner(settings, Records(tmp_path / "records", by_depth), tmp_path, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CellRunner, "run_largest", lambda *_: by_batch(cell_of(settings, "vgg16", 448, "eager")))
        measure_limits(run)
    table = pd.read_csv(tmp_path / "limits-depth.csv", dtype=str)
    found = {(row.model, row.batch_size) for row in table.itertuples()}
    assert found == {("resnet695", "32"), ("resnet1517", "16")}


def test_a_depth_that_takes_too_long_is_not_one_that_does_not_fit(tmp_path: Path) -> None:
    def slow(cell: dict[str, Any]) -> Record:
        is_deep = cell["model"]["module"].get("depth", 0) > 302
        return record_of(cell, Outcome.TIMEOUT if is_deep else Outcome.OK, peak_memory_bytes=1.0)

    run = CellRunner(Options(strategies=("eager",)), Records(tmp_path / "records", slow), tmp_path, None)
    assert measure._deepest(run, 32, "eager").outcome is Outcome.TIMEOUT


def test_a_cell_is_what_hydra_would_compose() -> None:
    cell = cell_of(parse(["cuda_graph=true", "budget=12GB"]), "resnet50", 32, "layrub_hybrid")
    assert cell["backend"] == {"name": "cuda", "cuda_graph": True}
    assert (cell["budget"], cell["strategy"]["_target_"]) == ("12GB", "membench.strategies.layrub.LayrubHybrid")


def test_a_precision_is_part_of_the_cell_and_of_its_tables_name() -> None:
    settings = parse(["precision=amp_bf16", "budget=12GB"])
    assert cell_of(settings, "gpt2", 8, "eager")["precision"] == "amp_bf16"
    assert settings.suffix == "-amp_bf16-12GB"
    assert "precision" not in cell_of(parse([]), "gpt2", 8, "eager") and parse([]).suffix == ""


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("precision=singel", "precision 'singel' is not known"),
        ("model=resnet50", "option 'model' is not known.* are: task, models"),
        ("limits", "'limits' is not a choice; write option=value"),
        ("task=all", "task 'all' is not known.* are: strategies, limits"),
        ("cuda_graph=yes", "cuda_graph 'yes' is not known.* are: true, false"),
        ("models=resnet50,resnet51", "models 'resnet51' is not known.* are: alexnet, .*"),
        ("strategies=magic", "strategies 'magic' is not known.* are: .*best_fit, .*"),
        ("batch_sizes=32,-1", "batch_sizes are positive numbers of images or 'largest', not '-1'"),
        ("batch_sizes=two", "batch_sizes are positive numbers of images or 'largest', not 'two'"),
        ("budget=lots", "budget: 'lots' is not a size"),
        ("time_limit_s=nan", "time_limit_s is a positive number, not 'nan'"),
        ("time_limit_s=soon", "time_limit_s is a positive number, not 'soon'"),
    ],
)
def test_a_wrong_word_is_refused_with_the_valid_ones(argument: str, message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        parse([argument])


def test_without_a_gpu_the_command_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_gpu(*_: Any) -> None:
        raise MembenchError("backend 'cuda' needs a GPU")

    monkeypatch.setattr(measure, "device_facts_from_outside", no_gpu)
    assert main(["measure"]) == 2
    assert capsys.readouterr().err == "membench measure: backend 'cuda' needs a GPU\n"


def test_results_that_cannot_be_written_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "device_facts_from_outside", lambda _: {"device": "a card"})
    (file := tmp_path / "file").touch()
    words = ["models=lenet", "strategies=eager", "batch_sizes=2", f"results={file}"]
    assert main(["measure", *words]) == 2
    assert capsys.readouterr().err.startswith(f"membench measure: {file}/a_card/records/")


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], "results/measured"),
        (["backend=cpu"], "outputs/measured"),
        (["backend=cpu", "results=/elsewhere"], "/elsewhere"),
    ],
)
def test_only_results_of_a_gpu_are_committed(words: list[str], folder: str) -> None:
    assert measure.parse(words).folder == ROOT / folder
