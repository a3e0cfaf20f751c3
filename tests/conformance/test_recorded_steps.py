"""Files of rows are accepted or refused by name, with the reason; those in the repository are accepted."""

import json
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest

from membench.cli.main import main
from membench.conformance.package import check_package
from membench.conformance.recorded_files import hash_of
from membench.conformance.recorded_steps import complaints
from membench.core.configuration import ROOT
from tests.helpers.added_package import added

ROWS = sorted((ROOT / "results" / "rows").glob("*.json"))


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.name)
def test_each_file_in_the_repository_is_accepted(path: Path) -> None:
    assert not list(complaints(path))


def _step(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["steps"][0].update(values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.pop("origin"), "it is not of the schema: data must contain ['origin'] properties"),
        (lambda content: content.update(form=0), "form must be same as const definition: 1, not 0"),
        (
            lambda content: content["origin"]["versions"].pop("torch"),
            "origin.versions must contain ['torch'] properties",
        ),
        (lambda content: content["steps"].pop(), "its steps are not the fixed set"),
        (lambda content: content["device"].clear(), "device must contain ['device'] properties"),
        (_step(batch_size=65), "its steps are not the fixed set"),
        (_step(peak_bytes=-1), "steps[0].peak_bytes must be bigger than or equal to 1, not -1"),
        (_step(step_time_s=nan), "it is not JSON: NaN is not a number"),
        (_step(peak_bytes=10**12), "the peak is above the predicted one"),
        (_step(step_time_s=1e-6), "its time is not that of the median window"),
        (_step(window_times_s=[]), "steps[0].window_times_s must contain at least 1 items"),
        (_step(note="mine"), "steps[0] must not contain {'note'} properties"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(
    change: Callable[[dict[str, Any]], object], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(ROWS[0].read_text())
    change(content)
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({**content, "sha256": hash_of(content)}))
    assert main(["bench", f"check={path}"]) == 1
    answer = capsys.readouterr().out
    assert "rows.json: refused: " in answer
    assert reason in answer


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(ROWS[0].read_text().replace('"clean": false', '"clean": true'))
    assert list(complaints(path)) == ["its hash is not that of its content: it was changed after it was recorded"]


def test_rows_of_a_package_are_checked(tmp_path: Path) -> None:
    files = {"rows/one.json": ROWS[0].read_text(), "rows/two.json": "{"}
    with added(tmp_path, "adds_rows", files):
        first, second = check_package("adds_rows", [])
    assert not first.broken
    assert "it is not JSON" in second.broken


@pytest.mark.parametrize("words", [[], ["record=one.json", "check=two.json"]])
def test_a_file_to_write_or_files_to_check_are_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert "name a file to write, record=FILE, files to check" in capsys.readouterr().err
