"""Files of planners are of the suite, and the page is made of them."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from membench.cli.main import main
from membench.conformance import planners
from membench.conformance.recorded_files import hash_of
from membench.conformance.recorded_steps import complaints
from membench.core.configuration import ROOT
from membench.core.errors import MembenchError

FOLDER = ROOT / "results" / "planners"
FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_in_the_repository_is_accepted_and_named_for_its_planner(path: Path) -> None:
    assert not list(complaints(path))
    assert json.loads(path.read_text())["planner"] == path.stem


def test_the_page_is_that_of_the_files(tmp_path: Path) -> None:
    copytree(FOLDER, tmp_path / "planners")
    page = tmp_path / "planners" / "README.md"
    page.unlink()
    assert planners.write_page(tmp_path / "planners") == page
    assert page.read_text() == (FOLDER / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"peak_bytes": 10**12}, "alexnet in "),
        ({"step_time_s": 1e-9}, "the step is faster than its bound"),
        ({"batch_size": 63}, "its points are not those of the suite"),
        ({"reason": "both"}, "it is not of the schema: points[0] must be valid exactly by one definition"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    content = json.loads((FOLDER / "joint.json").read_text())
    content["points"][0].update(change)
    path = tmp_path / "joint.json"
    path.write_text(json.dumps({**content, "sha256": hash_of(content)}))
    assert any(reason in each for each in complaints(path))
    with pytest.raises(MembenchError, match="joint.json: "):
        planners.write_page(tmp_path)


def test_a_folder_without_bounds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MembenchError, match="record one of joint"):
        planners.write_page(tmp_path)


@pytest.mark.slow
def test_a_planner_is_recorded_on_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planners, "SUITE", (("digits_cnn", "k40m", 64),))
    path = tmp_path / "capuchin.json"
    assert main(["bench", f"record={path}", "planner=capuchin"]) == 0
    points = json.loads(path.read_text())["points"]
    assert [point["model"] for point in points] == ["digits_cnn"] * len(planners.SHARES)
    assert not list(complaints(path))
