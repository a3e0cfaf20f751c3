"""Papers and data sets of a package: those of docs/experiment.md and docs/validation.md, under a name of its own."""

from pathlib import Path

import pytest

from membench.cli.main import main
from membench.conformance.package import Finding
from membench.core.configuration import ROOT
from membench.core.errors import MembenchError
from membench.lab.cli import validate
from membench.lab.conformance import check_experiments
from membench.lab.papers.reading.loader import folder_of
from tests.helpers.added_package import added
from tests.helpers.pages import code_of

EXPERIMENTS = ROOT / "experiments"


def _files(package: str) -> dict[str, str]:
    """Return the files of both pages, whose modules are named from the package on."""
    return {
        code.file: code.text.replace("experiments.", f"{package}.experiments.")
        for page in ("docs/experiment.md", "docs/validation.md")
        for code in code_of(page)
        if code.file.startswith("experiments/")
    }


def _broken(found: list[Finding]) -> dict[str, str]:
    return {f"{Path(each.file).name}: {each.what}": each.broken for each in found if each.broken}


@pytest.mark.slow
def test_its_papers_and_data_sets_hold_and_are_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(validate, "RECORDS", tmp_path / "records")
    with added(tmp_path / "site", "adds_papers", _files("adds_papers")):
        found = list(check_experiments("adds_papers"))
        assert len(found) == 6 and not _broken(found)
        assert main(["check", "adds_papers"]) == 0
        assert main(["reproduce", "example", "workers=1"]) == 0
        assert main(["validate", "dataset=example", "workers=1"]) == 0
    assert (tmp_path / "outputs" / "papers" / "example" / "scoreboard.csv").exists()
    assert "tower" in (tmp_path / "outputs" / "validation" / "example.csv").read_text()
    assert not list((tmp_path / "site" / "adds_papers").rglob("results"))
    assert "example" in capsys.readouterr().out
    with pytest.raises(MembenchError, match="paper 'example' is not known"):
        folder_of("example", EXPERIMENTS)


def test_what_they_break_is_named(tmp_path: Path) -> None:
    package = "adds_wrong_papers"
    files = {name.replace("example", "vdnn"): text for name, text in _files(package).items() if "/example/" in name}
    files["experiments/vdnn/reference.csv"] += "Table 9,LeNet,MNIST,64,the paper's card,Ours,speed,x,2,false,,\n"
    files |= {
        "experiments/validation/mine.csv": "network,batch_size\n",
        "experiments/validation/mine.yaml": "rows: 1\n",
    }
    with added(tmp_path, package, files):
        broken = _broken(list(check_experiments(package)))
        assert folder_of("vdnn", EXPERIMENTS) == EXPERIMENTS / "vdnn"
    assert "membench has vdnn itself" in broken["vdnn: the name is free"]
    assert "Table 9" in broken["vdnn: each number is answered once"]
    assert broken["mine: its rows are read"]
