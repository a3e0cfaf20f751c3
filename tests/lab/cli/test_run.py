"""`membench run paper=...`: cells of a paper, and the rows of its tables that they answer."""

import csv
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from membench.cli.main import main
from membench.core.configuration import ROOT
from membench.lab.cli.run import ROWS, in_groups
from membench.lab.papers.reading.groups import write_groups
from membench.lab.papers.reading.loader import known_papers, load_paper
from tests.helpers.pages import code_of

LAYRUB = load_paper(ROOT / "experiments" / "layrub")
PAPERS = ", ".join(known_papers(ROOT / "experiments"))


def _lines(path: Path) -> list[tuple[str, ...]]:
    with path.open(newline="") as file:
        return [tuple(line) for line in csv.reader(file)]


def _rows(folder: Path, *words: str) -> list[tuple[str, ...]]:
    """Run a sweep in the current folder, and return the lines of its file of rows."""
    before = {*folder.rglob(ROWS)}
    assert main(["run", "-m", *words]) == 0
    [written] = {*folder.rglob(ROWS)} - before
    return _lines(written)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["paper=nobody"], f"paper 'nobody' is not known; there are: {PAPERS}; or name a folder with paper.yaml"),
        (["-m", "paper=layrub,vdnn"], "name one paper, not layrub,vdnn"),
        (["paper=layrub", "paper=vdnn"], "name one paper, not layrub, vdnn"),
        (["paper=layrub", "model=lenet"], "name a method of layrub: strategy=Caffe, or any of: "),
        (["paper=layrub", "strategy=Caffe"], "name a network of layrub: model=LeNet, or any of: "),
        (["paper=layrub", "model=lenet", "strategy=rotor"], "method of layrub 'rotor' is not known; there are: "),
        (["paper=epmc", "model=alexnet", "strategy=COO"], "method of epmc 'COO' is not known"),
        (["paper=layrub", "model=resnet51", "strategy=Caffe"], "model 'resnet51' is not known"),
        (["paper=layrub", "model=lenet", "strategy=Caffe", "batch_size=huge"], "batch_size is a positive whole number"),
        (["paper=layrub", "--config-dir", ".", "model=lenet"], "--config-dir and paper= do not go together; "),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"membench run: {expected}")


def test_other_commands_have_no_papers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "paper=layrub", "model=lenet", "device=k40m"]) == 2
    assert capsys.readouterr().err.endswith("paper is not an option of predict, but of `membench run`; leave it out\n")


def test_words_become_the_papers_and_a_network_of_others_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_groups(LAYRUB, tmp_path)
    words = ["-m", "model=resnet1001,wrn28_10,vgg516", "strategy=glob(layrub_in*)", "strategy.fixed_region=false"]
    assert in_groups(LAYRUB, words, tmp_path) == [
        "-m",
        'device="layrub/NVIDIA Tesla K40M"',
        'model="layrub/ResNet-1001","layrub/WRN-28-10",vgg516',
        'strategy="layrub/Layrub-inter","layrub/Layrub-intra"',
        "strategy.fixed_region=false",
    ]
    assert capsys.readouterr().err == "layrub has no network 'vgg516': no row of its tables is of that one\n"


def test_each_choice_of_a_sweep_is_checked_with_those_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usual network, which no word names, has no batch size of this name."""
    monkeypatch.chdir(tmp_path)
    words = ["paper=layrub", "model=alexnet,vgg16", "strategy=Caffe", "batch_size=normal,largest", "dry_run=true"]
    assert main(["run", "-m", *words]) == 0
    *cells, _ = capsys.readouterr().out.splitlines()
    found = [line.partition("batch_size=")[2].split()[0] for line in cells]
    assert found == ["128", "largest", "64", "largest"]


@pytest.mark.slow
def test_rows_are_those_of_the_papers_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    title, *rows = _rows(
        tmp_path, "paper=layrub", "model=resnet34", "strategy=network_wide,layrub_hybrid,MXNet-memonger"
    )
    assert "rows of the paper's tables: outputs/" in capsys.readouterr().out
    table = _lines(ROOT / "results" / "layrub" / "table6.csv")
    assert [title, *(row for row in rows if row[0] == "Table 6")] == [
        line for line in table if line == title or (line[1] == "ResNet-34" and line[4] == "NVIDIA Tesla K40M")
    ]
    words = "paper=layrub", "model=resnet34", "strategy=layrub_hybrid", "framework=pytorch"
    assert main(["run", *words]) == 0
    assert "rows of the paper's tables" not in capsys.readouterr().out  # another framework than the paper's


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("item", "words"),
    [
        (
            "table6",
            "model=resnet34,resnet50,resnet302,resnet695,resnet1001,resnet1172,resnet1304,resnet1517 "
            "strategy=network_wide,layrub_hybrid,memonger device=k40m,titan_z",
        ),
        (
            "table7",
            "model=alexnet,vgg16,resnet34,resnet50,resnet56,wrn28_10 strategy=layrub_hybrid "
            "batch_size=normal,extreme,largest",
        ),
    ],
)
def test_a_sweep_has_each_simulated_row_of_a_table(
    item: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = _rows(tmp_path, "paper=layrub", *words.split())
    title, *table = _lines(ROOT / "results" / "layrub" / f"{item}.csv")
    simulated = [line for line in table if dict(zip(title, line, strict=True))["outcome"] not in ("input", "not_run")]
    assert [row for row in rows if row[0] == f"Table {item[-1]}"] == simulated


@pytest.mark.slow
def test_a_paper_in_a_folder_elsewhere_is_reproduced_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper of docs/experiment.md, whose metric is imported by the folder's name; no file of the papers changes."""
    folder = tmp_path / "some_paper"
    folder.mkdir()
    for code in code_of("docs/experiment.md"):
        if code.file:
            (folder / Path(code.file).name).write_text(code.text.replace("experiments.example", "some_paper"))
    monkeypatch.chdir(tmp_path)
    results = {path: path.read_bytes() for path in (ROOT / "results").rglob("*") if path.is_file()}
    assert main(["reproduce", "some_paper", "tracking=disabled", "workers=1"]) == 0
    assert {path: path.read_bytes() for path in (ROOT / "results").rglob("*") if path.is_file()} == results
    table = _lines(folder / "results" / "some_paper" / "table1.csv")
    rows = _rows(tmp_path, f"paper={folder}", "model=lenet", "strategy=Caffe,layrub_hybrid")
    assert rows == [line for line in table if line[8:] and "input" not in line]
    assert any("images_per_memory" in row for row in rows)


def test_a_reproduction_rewrites_nothing_of_another_paper(tmp_path: Path) -> None:
    """The papers' common page has them all, each as its own files state it."""
    from membench.lab.papers.pages.results import write_results

    for name in ("epmc", "vdnn"):
        copytree(ROOT / "results" / name, tmp_path / name, ignore=ignore_patterns("*.jsonl"))
    before = {path: path.read_bytes() for path in (tmp_path / "epmc").iterdir()}
    write_results(load_paper(ROOT / "experiments" / "vdnn"), {}, tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "epmc").iterdir()} == before
    assert (tmp_path / "epmc" / "summary.md").read_text() in (tmp_path / "SCOREBOARD.md").read_text()
