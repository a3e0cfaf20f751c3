"""`python -m membench.train`: curves and records of every seed, and one-line errors."""

import json
from pathlib import Path

import pandas as pd
import pytest

from membench.train import main

SMALL = ["model=digits_cnn", "epochs=1", "batch_size=512", "seeds=[4,5]"]


def test_trains_each_seed_once_and_writes_curves_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "strategy=layrub_hybrid", f"output={tmp_path}"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("digits_cnn on digits, batch 512, LayrubHybrid, 1 epochs\n  seed 4  loss ")
    assert "mean of 2  test accuracy" in printed
    curves = pd.read_csv(tmp_path / "training.csv")
    assert curves["seed"].tolist() == [4, 5]
    assert curves["loss"].nunique() == 2
    records = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    assert [record["configuration"]["recipe"]["seed"] for record in records] == [4, 5]
    assert all(
        {"commit", "clean", "versions", "time", "device"} <= record["provenance"].keys() for record in records
    )
    assert main(words) == 0  # what has a record is not run again
    assert "seed 4" not in capsys.readouterr().out
    assert len((tmp_path / "training.jsonl").read_text().splitlines()) == 2


def test_a_run_that_fails_is_a_record_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "budget='20 KB'", f"output={tmp_path}"]) == 1
    printed = capsys.readouterr().out
    assert "seed 4  infeasible: a budget of 20.0 KB is too small" in printed
    assert "no run ended well" in printed


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model=resnet51"], "model 'resnet51' is not known; there are: alexnet, "),
        (
            ["data=mnist"],
            "data 'mnist' is not known; there are: caltech256, cifar10, coil100, digits, imagenet",
        ),
        (["speed=3"], "'speed' is not an option; there are: model, data, strategy, backend, batch_size"),
        (["device=k40m"], "'device' is not an option; there are: model, data, strategy, backend"),
        (["+speed=3"], "'+speed=3' is no choice; write option=value"),
        (["data.root=x"], "'data.root' is not an option; there are: none"),
        (
            ["model=lenet"],
            "lenet takes 1x28x28 images of 10 classes, and digits has 1x8x8 images of 10 classes",
        ),
        (
            ["data=cifar10", "data.root=nowhere"],
            "CIFAR-10 has no nowhere/cifar-10-batches-py/data_batch_1: download",
        ),
        (["epochs=0"], "epochs is a positive whole number, not 0"),
        (["learning_rate=-1"], "learning_rate is a number and not negative, not -1"),
        (["seeds=3"], "seeds is a list of whole numbers, [0, 1, 2], not 3"),
        (["budget=small"], "budget: 'small' is not a size"),
        (["backend=simulated"], "a simulated step computes nothing; train with backend=cpu"),
        (["nobody"], "'nobody' is neither one paper nor a list of option=value; papers with trainings: "),
    ],
)
def test_a_wrong_word_is_answered_in_one_line(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    answered = capsys.readouterr().err
    assert answered.startswith(expected)
    assert answered.count("\n") == 1
