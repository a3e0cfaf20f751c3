"""`membench validate`: a subset prints its errors, and a wrong word is refused."""

from pathlib import Path

import pytest

from membench.cli.main import main
from membench.lab.cli import validate


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
