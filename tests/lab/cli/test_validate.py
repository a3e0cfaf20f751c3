"""`membench validate`: a subset prints its errors, and a wrong word is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from membench.cli.main import main
from membench.core import configuration
from membench.lab.calibrate import kernel_rates
from membench.lab.cli import validate
from membench.lab.validation.dataset import load_dataset


@pytest.mark.slow
def test_a_subset_prints_errors_and_writes_no_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(validate, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(validate, "RESULTS", tmp_path / "results")
    assert main(["validate", "dataset=schedtune", "rows=2", "workers=1"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["data", "set", "part"] and lines
    assert not (tmp_path / "results").exists()
    assert len(list((tmp_path / "records").iterdir())) == 2


@pytest.mark.slow
def test_a_row_has_its_numbers_and_its_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "dataset=timm_nchw", "row=0"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "timm_nchw, row 0 on rtx3090"
    assert any("measured," in line and "predicted (" in line for line in lines)
    assert any(line.startswith("  convolution_backward") for line in lines)


@pytest.mark.slow
def test_a_card_is_left_out_with_all_boards_of_its_chip(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows on an H100 as well, whose chip an H200 has, with the rates that are fitted without it."""
    rates = configuration.load("framework", "pytorch").efficiency.kernels
    monkeypatch.setattr(kernel_rates, "rates_without", lambda card, folder: replace(rates, copy=0.25))
    datasets = [load_dataset(validate.DATASETS, name) for name in ("neusight", "timm_nchw", "h200")]
    left_out = validate._leaving_out("h200", datasets)
    printed = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line]
    assert printed == [["kernels", "card"], ["square_float16", "h100"], ["square_float32", "h100"]]
    assert [data.name for data in left_out] == ["neusight", "h200"]
    rows = [row for data in left_out for row in data.rows]
    assert {row.device for row in rows} == {"h100", "h200"}
    assert {row.step["rates"]["copy"] for row in rows} == {0.25}
    assert len(left_out[1].rows) == len(datasets[2].rows) > len(left_out[0].rows)


@pytest.mark.parametrize(
    "words",
    [
        ["dataset=schedtun"],
        ["rows=0"],
        ["workers=x"],
        ["rerun=failed"],
        ["now"],
        ["row=3"],
        ["dataset=torchtune", "row=1000"],
        ["dataset=torchtune", "row=one"],
        ["leave_out=a_card"],
        ["leave_out=k40m"],
    ],
)
def test_wrong_words_are_refused_in_a_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
