"""`membench report` on records: the table of any folder, and two folders side by side."""

import json
import shutil
from pathlib import Path

import pytest

import membench
from membench.cli.main import main
from membench.core.configuration import read
from membench.core.errors import MembenchError
from membench.core.record import Record
from membench.sweep.cells.run import run_cell
from membench.sweep.results.comparison import compare_records
from tests.helpers.sweep.cells import small_cell


def _write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True)
    for number, record in enumerate(records):
        (folder / f"{number}.json").write_text(record.to_json())
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two batches on one device, and one of them on another."""
    here = [run_cell(small_cell(batch_size=size)) for size in (4, 8)]
    there = [run_cell(small_cell(batch_size=4, device=read("device", "titan_z")))]
    return _write(tmp_path / "here", here), _write(tmp_path / "there", there)


def test_the_records_of_a_folder_are_a_table(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    frame = membench.records(folders[0])
    assert sorted(frame["batch_size"]) == [4, 8] and (frame["strategy"] == "eager").all()
    assert {"peak_memory_bytes", "step_time_s"} <= set(frame.columns)
    assert main(["report", "sweep", str(folders[0])]) == 0
    assert "2 cells: 2 ok" in capsys.readouterr().out
    assert main(["report", "sweep", str(folders[0]), "output=json"]) == 0
    assert [row["batch_size"] for row in json.loads(capsys.readouterr().out)] == list(frame["batch_size"])
    assert main(["report", "sweep", str(folders[0]), "output=csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_record_that_was_copied_counts_once(folders: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "here" / "again")
    assert len(membench.records(tmp_path / "here")) == 2


def test_two_folders_are_compared_cell_by_cell(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    here, there = map(str, folders)
    assert main(["report", "compare", here, here]) == 0
    assert "2 cells in both, 0 of them differ" in capsys.readouterr().out
    assert main(["report", "compare", here, there]) == 1
    out = capsys.readouterr().out
    assert "device: k40m in A, titan_z in B" in out
    assert "1 cells in both" in out and "1 only in A, 0 only in B" in out


def test_cells_are_the_same_but_for_what_is_constant_in_each_folder() -> None:
    before = [run_cell(small_cell(seed=seed)) for seed in (0, 1)]
    after = [run_cell(small_cell(seed=seed, budget="1 GB")) for seed in (1, 0)]
    found = compare_records(before, after)
    assert dict(found.between) == {"budget": ("None", "1 GB")}
    assert [pair.options for pair in found.pairs] == [{"seed": "0"}, {"seed": "1"}]
    assert all(pair.before.configuration["seed"] == pair.after.configuration["seed"] for pair in found.pairs)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sweep", "nowhere"], "nowhere is not a folder"),
        (["sweep", "a", "b"], "sweep takes one folder"),
        (["compare", "a"], "compare takes two folders of records, not 1"),
        (["sweep", "."], "there are no records in ."),
        (["sweep", "output=xml"], "output 'xml' is not known; there are: text, json, csv, markdown"),
    ],
)
def test_a_wrong_word_is_one_line(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err and captured.err.count("\n") == 1


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MembenchError, match="there are no records in"):
        membench.records(tmp_path)
