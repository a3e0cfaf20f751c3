"""`membench train`: curves and records of every seed, and one-line errors."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from membench.cli.main import main
from membench.core.configuration import ROOT
from membench.core.units import MIB
from membench.lab.cli.train import parse
from tests.helpers.added_package import added
from tests.helpers.lab.cifar10 import write_cifar10

SMALL = ["train", "model=digits_cnn", "epochs=1", "batch_size=512", "seeds=[4,5]"]


@pytest.mark.slow
def test_trains_each_seed_once_and_writes_curves_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "strategy=layrub_hybrid", f"folder={tmp_path}"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("digits_cnn on digits, batch 512, layrub_hybrid, 1 epochs\n  seed 4  loss ")
    assert "mean of 2  test accuracy" in printed
    curves = pd.read_csv(tmp_path / "training.csv")
    assert curves["seed"].tolist() == [4, 5]
    assert curves["loss"].nunique() == 2
    records = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    assert [record["configuration"]["recipe"]["seed"] for record in records] == [4, 5]
    assert all({"commit", "clean", "versions", "time", "device"} <= record["provenance"].keys() for record in records)
    assert main([*words, "output=json"]) == 0  # what has a record is not run again
    rows = json.loads(capsys.readouterr().out)
    assert [(row["seed"], row["epoch"]) for row in rows] == [("4", "1"), ("5", "1")]
    assert len((tmp_path / "training.jsonl").read_text().splitlines()) == 2


def test_a_failed_run_is_a_record_and_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "budget='20 KB'", f"folder={tmp_path}"]) == 1
    printed = capsys.readouterr().out
    assert "seed 4  infeasible: a budget of 20.0 KB is too small" in printed
    assert "no run succeeded" in printed


@pytest.mark.slow
def test_the_trained_network_is_tested_again_within_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """mmCNN's Table 1 on one of its own data sets, from files in the layout in which that is distributed."""
    write_cifar10(tmp_path)
    words = ["train", "model=small_alexnet", "data=cifar10", f"data.root={tmp_path}", "model.input_shape=[3,32,32]"]
    words += ["batch_size=5", "epochs=1", "seeds=[0]", "inference_budgets=[12 MB, 1 KB]", f"folder={tmp_path}"]
    assert main(words) == 1
    [record] = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    assert record["outcome"] == "infeasible" and "1.0 KB is too small" in record["reason"]
    assert record["samples"] == {}  # it was refused before an epoch was spent
    assert main([word.replace(", 1 KB", "") for word in words]) == 0
    *_, record = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    assert record["configuration"]["inference"] == {"strategy": "mmcnn", "budgets": ["12 MB"]}
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    assert main([word.replace(", 1 KB", "") for word in words]) == 0  # what has its records needs no data
    metrics = record["metrics"]
    assert metrics["inference_accuracy:12 MB"] == metrics["inference_unlimited_accuracy:12 MB"]
    assert metrics["inference_peak_bytes:12 MB"] <= 12 * MIB
    assert "within 12 MB  test accuracy" in capsys.readouterr().out


def test_records_that_cannot_be_written_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main([*SMALL, f"folder={tmp_path}/file"]) == 2  # before anything is trained
    assert capsys.readouterr().err.startswith(f"membench train: {tmp_path}/file")


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_training_that_is_killed_keeps_its_finished_seeds(end: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "membench", *SMALL[:-1], "seeds=[4,5,6]", "epochs=5", "folder=made"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # a job in the background ignores Ctrl-C, which the training would inherit
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    training = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    assert training.stdout
    while not training.stdout.readline().startswith("  seed 4"):
        assert training.poll() is None
    training.send_signal(end)
    training.communicate(timeout=120)
    assert training.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(end, -end)
    log = tmp_path / "made" / "training.jsonl"
    kept = log.read_text()
    assert 1 <= len(kept.splitlines()) < 3
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=240)
    assert log.read_text().startswith(kept)
    seeds = [json.loads(line)["configuration"]["recipe"]["seed"] for line in log.read_text().splitlines()]
    assert seeds == [4, 5, 6]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model=resnet51"], "model 'resnet51' is not known"),
        (["data=mnist"], "data 'mnist' is not known"),
        (["speed=3"], "option 'speed' is not known"),
        (["device=k40m"], "option 'device' is not known"),
        (["+speed=3"], "'+speed=3' is not a choice; write option=value"),
        (["data.root=x"], "option 'data.root' is not known"),
        (["model=lenet"], "lenet takes 1x28x28 images of 10 classes, and digits has 1x8x8 images of 10 classes"),
        (
            ["data=cifar10", "data.root=nowhere"],
            "data: CIFAR-10 has no nowhere/cifar-10-batches-py/data_batch_1: download",
        ),
        (["epochs=0"], "epochs is a positive whole number, not 0"),
        (["learning_rate=-1"], "learning_rate is a number and not negative, not -1"),
        (["target_accuracy=97"], "target_accuracy is a fraction above 0 and at most 1, not 97"),
        (["strategy=layrub_hybrid", "strategy.fixed_region=maybe"], "strategy.fixed_region is true or false, not"),
        (["model.module._target_=nobody.net"], "model: nobody.net cannot be imported (No module named 'nobody')"),
        (["inference_strategy=magic", "inference_budgets=[5MB]"], "strategy 'magic' is not known; there are: "),
        (["model=null"], "model None is not known"),
        (["data=cifar10", "data.root=7"], "data cannot be built with these options"),
        (["seeds=3"], "seeds is a list of whole numbers, [0, 1, 2], not 3"),
        (["budget=small"], "budget: 'small' is not a size"),
        (["inference_budgets=5 MB"], "inference_budgets is a list of sizes, ['10 MB'], not '5 MB'"),
        (["inference_budgets=[small]"], "inference_budgets: 'small' is not a size"),
        (["backend=simulated"], "a simulated step computes nothing; train with backend=cpu"),
        (["nobody"], "'nobody' is neither one paper nor a list of option=value; papers with trainings: "),
    ],
)
def test_a_wrong_word_is_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *arguments]) == 2
    answered = capsys.readouterr().err
    assert answered.startswith(f"membench train: {expected}")
    assert answered.count("\n") == 1


_TRAININGS = """
common: {model: digits_cnn, data: digits, strategy: eager, epochs: 1}
trainings:
  a small one: {batch_size: 8}
"""


def test_a_paper_of_a_package_or_of_any_folder_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the folder in which `membench reproduce` looks for it."""
    monkeypatch.chdir(tmp_path)
    files = {"experiments/mine/paper.yaml": "name: mine\n", "experiments/mine/trainings.yaml": _TRAININGS}
    with added(tmp_path / "site", "adds_trainings", files):
        of_package = parse(["mine"])
    assert [each.name for each in of_package.trainings] == ["a small one"]
    assert of_package.directory == tmp_path / "outputs" / "papers" / "mine"
    folder = tmp_path / "site" / "adds_trainings" / "experiments" / "mine"
    assert parse([str(folder)]).directory == folder / "results" / "mine"
