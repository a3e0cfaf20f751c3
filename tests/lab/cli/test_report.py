"""`membench report`: which results it reads, and an error where there are none."""

from pathlib import Path

import pytest

from membench.cli.main import main
from membench.core.configuration import ROOT
from membench.lab.cli import report


def test_the_results_that_are_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "epmc"]) == 0
    assert (
        capsys.readouterr().out == f"outputs/report/index.html, with epmc.html, of the results in {ROOT / 'results'}\n"
    )
    assert {path.name for path in (tmp_path / "outputs" / "report").iterdir()} == {"index.html", "epmc.html"}


def test_without_results_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "ROOT", Path())  # as where membench is installed
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert capsys.readouterr().err.startswith("membench report: there is no folder experiments; run this in a")
    (tmp_path / "experiments").mkdir()
    assert main(["report"]) == 2
    assert capsys.readouterr().err.startswith("membench report: there are no results in results; ")
    assert [path.name for path in tmp_path.iterdir()] == ["experiments"]
