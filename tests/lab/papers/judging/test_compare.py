"""Comparison of two sets of results: changes, and errors for the user."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.cli.main import main
from membench.core.configuration import ROOT
from membench.lab.papers.judging.compare import compare, comparison_lines, read_results

ROW = {
    "item": "Table 1", "model": "small", "dataset": "", "batch_size": "8", "device": "a card", "system": "ours",
    "metric": "memory", "unit": "MB", "our_batch_size": "", "paper_value": "100", "simulated_value": "101",
    "measured_value": "", "deviation": "0.01", "verdict": "reproduced", "fitted": "false", "held_out": "false",
    "choice": "", "can_fail": "true", "reason": "",
}  # fmt: skip

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(name: str, *changes: dict[str, str]) -> str:
        path = tmp_path / name / "scoreboard.csv"
        path.parent.mkdir(parents=True)
        pd.DataFrame([{**ROW, **changed} for changed in changes]).to_csv(path, index=False)
        return str(path.parent)

    return to


def test_results_do_not_differ_from_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    results = str(ROOT / "results")
    assert main(["report", "compare", results, results]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("rows compared: no difference")


def test_each_kind_of_change_is_named(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    before = write("a", {}, {"metric": "time"}, {"metric": "gone"}, {"metric": "same"})
    after = write(
        "b",
        {"simulated_value": "150", "verdict": "worse"},
        {"metric": "time", "simulated_value": "104", "measured_value": "7"},
        {"metric": "same", "simulated_value": "101.5", "reason": "other words"},
        {"metric": "new", "verdict": "not_run"},
    )
    assert main(["report", "compare", before, after]) == 1
    assert capsys.readouterr().out.splitlines()[2:] == [
        "verdict changed: 1",
        "  Table 1, small, batch 8, a card, ours, memory",
        "      reproduced -> worse",
        "      simulated: 101 -> 150 MB (+48.5%)",
        "value changed: 1",
        "  Table 1, small, batch 8, a card, ours, time",
        "      simulated: 101 -> 104 MB (+3.0%)",
        "      measured: none -> 7 MB",
        "only in A: 1",
        "  Table 1, small, batch 8, a card, ours, gone: reproduced",
        "only in B: 1",
        "  Table 1, small, batch 8, a card, ours, new: not run",
        "3 rows compared: 1 changed verdicts, 1 changed values, 1 rows only in A, 1 only in B",
    ]


def test_a_batch_size_that_we_found_is_a_change_and_no_other_row(write: Write) -> None:
    before, after = write("a", {"our_batch_size": "432"}), write("b", {"our_batch_size": "448"})
    comparison = compare(read_results(Path(before)), read_results(Path(after)))
    assert [change.differences for change in comparison.values] == [("batch 432 -> 448",)]
    assert not comparison.only_before + comparison.only_after


@given(st.lists(st.sampled_from(["memory", "time", "ratio"]), max_size=8), st.floats(0, 1))
def test_equal_rows_pair_up_however_often_they_occur(metrics: list[str], tolerance: float) -> None:
    rows = [{**ROW, "paper": "", "metric": metric} for metric in metrics]
    comparison = compare(rows, rows, tolerance=tolerance)
    assert comparison.is_same
    assert comparison.compared == len(rows)
    assert "no difference" in list(comparison_lines(comparison))[-1]


def test_tolerance_is_a_fraction_of_the_value_before(write: Write) -> None:
    before, after = write("a", {}), write("b", {"simulated_value": "110"})
    assert main(["report", "compare", before, after, "tolerance=0.1"]) == 0
    assert main(["report", "compare", before, after, "tolerance=0.05"]) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compare", "results"], "compare takes two sets of results, not 1"),
        (["compare", "nowhere", "results"], "there is no scoreboard at nowhere; name a scoreboard.csv"),
        (["compare", "results", "results", "tolerance=much"], "tolerance is a number and not negative, not 'much'"),
        (["compare", "results", "results", "tolerance=nan"], "tolerance is a number and not negative, not 'nan'"),
        (["compare", "results", "results", "tolerance=-1"], "tolerance is a number and not negative, not '-1'"),
        (["vdnn", "to=README.md"], "README.md: File exists; name a place that can be read and written"),
        (["compare", "results", "results", "colour=red"], "option 'colour' is not known"),
        (["nobody"], "there is no paper 'nobody'; there are: epmc, layrub, mmcnn, modnn, offloading, vdnn"),
    ],
)
def test_a_wrong_word_is_one_line(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"membench report: {expected}")
    assert error.count("\n") == 1


def test_a_file_that_is_not_a_scoreboard_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scoreboard.csv").write_text("item,model\nTable 1,small\n")
    assert main(["report", "compare", str(tmp_path), str(tmp_path)]) == 2
    assert "row 1 of" in (error := capsys.readouterr().err) and "has no column dataset" in error
    (tmp_path / "scoreboard.csv").write_bytes(b"\xe4\x00\xff")
    assert main(["report", "compare", str(tmp_path), str(tmp_path)]) == 2
    assert "is not a CSV file" in capsys.readouterr().err
    pd.DataFrame([ROW | {"simulated_value": "many"}]).to_csv(tmp_path / "scoreboard.csv", index=False)
    assert main(["report", "compare", str(tmp_path), str(tmp_path)]) == 2
    assert "simulated_value is 'many', which is not a number" in capsys.readouterr().err
