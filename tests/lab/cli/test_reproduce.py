"""`membench reproduce`: from experiments to files, with made-up records in place of runs."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from membench.cli.main import main
from membench.core.configuration import ROOT
from membench.core.record import Configuration, Outcome, Record
from membench.core.tables import read_csv
from membench.lab.cli.reproduce import Execution, closing_summary, parse, reproduce, vary
from membench.lab.papers.judging.closeness import Closeness
from membench.lab.papers.judging.numbers import PaperNumbers
from membench.lab.papers.judging.verdicts import Verdict
from membench.lab.papers.pages.results import needed_cells
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.loader import known_papers, load_paper
from tests.helpers.sweep import jobs

LAYRUB = load_paper(ROOT / "experiments" / "layrub")
PAPERS = ", ".join(known_papers(ROOT / "experiments"))
TRACKING = "disabled, offline, online, tensorboard"

CELLS = compose_cells(LAYRUB, needed_cells(LAYRUB))


def _reproduce(
    directory: Path, run: Callable[[Configuration], Record], workers: int = 2
) -> tuple[list[Record], PaperNumbers]:
    execution = Execution(run, workers, stop=lambda: None)
    records, numbers = reproduce(LAYRUB, CELLS, execution, directory)
    return list(records.values()), numbers


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("results")
    _reproduce(directory, jobs.made_up)
    return directory


def _bytes(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*.*"))}


@pytest.mark.slow
def test_same_bytes_when_run_again(results: Path, tmp_path: Path) -> None:
    _reproduce(tmp_path, jobs.made_up, workers=1)
    assert _bytes(tmp_path) == _bytes(results)


def test_every_number_of_the_paper_has_a_verdict(results: Path) -> None:
    frame = pd.read_csv(results / "layrub" / "scoreboard.csv", keep_default_na=False)
    assert len(frame) == len(pd.read_csv(ROOT / "experiments" / "layrub" / "reference.csv"))
    assert set(frame["verdict"]) <= {str(verdict) for verdict in Verdict}
    silent = frame[frame["verdict"].isin(["not_run", "input", "out_of_memory_as_in_paper"]) & (frame["reason"] == "")]
    assert silent.empty


def test_our_column_never_holds_the_number_of_the_paper(results: Path) -> None:
    """Where nothing was run our value is empty; and made-up runs reproduce next to nothing."""
    frame = pd.read_csv(results / "layrub" / "scoreboard.csv", keep_default_na=False)
    assert (frame[frame["verdict"].isin(["input"])]["simulated_value"] == "").all()
    assert (frame["measured_value"] == "").all()
    assert (frame["verdict"] == "reproduced").sum() < 0.2 * frame["verdict"].isin(["better", "worse"]).sum()


def test_each_experiment_has_a_table_and_the_page_links_to_the_rows(results: Path) -> None:
    for experiment in LAYRUB.experiments:
        frame = pd.read_csv(results / "layrub" / f"{experiment.name}.csv", keep_default_na=False)
        assert len(frame) == len(experiment.rows)
    page = (results / "SCOREBOARD.md").read_text()
    assert page.startswith("# Scoreboard\n\n## Are methods ordered")
    assert "\n| [Layrub](#layrub-layer-centric-memory-reuse-and-" in page
    assert "(layrub/scoreboard.csv)" in page
    reasons = {answer.not_run for experiment in LAYRUB.experiments for _, answer in experiment.rows}
    assert all(reason in page for reason in reasons)


def test_closing_summary_names_failures(tmp_path: Path) -> None:
    records, numbers = _reproduce(tmp_path, jobs.fail)
    assert {record.outcome for record in records} == {Outcome.FAILED}
    text = "\n".join(closing_summary(records, numbers, Closeness.of(numbers), None, parse(["layrub"])))
    assert str(Path("results", "SCOREBOARD.md")) in text
    assert "0 of 0 predicted numbers reproduced" in text
    assert f"{len(records)} cells: {len(records)} failed\n" in text
    assert "RuntimeError: no such luck" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], f"name a paper; there are: {PAPERS}"),
        (["nobody"], f"paper 'nobody' is not known; there are: {PAPERS}; or name a folder with paper.yaml"),
        (["layrub", "tracking=paper"], f"tracking 'paper' is not known; there are: {TRACKING}"),
        (["layrub", "tracking=3"], f"tracking 3 is not known; there are: {TRACKING}"),
        (["layrub", "vdnn"], "name one paper, not 2: layrub, vdnn"),
        (["layrub", "workers=0"], "workers is a positive whole number, not 0"),
        (["layrub", "tracking.mode=loud"], f"tracking.mode 'loud' is not known; there are: {TRACKING}"),
        (["layrub", "+speed=3"], "'+speed=3' is not a choice; write option=value"),
        (["layrub", "rerun=some"], "rerun 'some' is not known; there are: missing, failed, all"),
        (["layrub", "time_limit_s=0"], "time_limit_s is a positive number, not 0"),
        (
            ["layrub", "speed=3"],
            "option 'speed' is not known; there are: tracking, time_limit_s, rerun, dry_run, strict, paper, workers, "
            "output, sensitivity",
        ),
    ],
)
def test_a_wrong_word_is_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *arguments]) == 2
    assert capsys.readouterr().err == f"membench reproduce: {expected}\n"


@pytest.mark.slow
def test_figures_read_results_only_and_are_the_same_bytes_again(results: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(results, tmp_path / "results")
    for name in ("training.csv", "figure15.csv", "figure8.csv"):  # trainings and single layers have no stand-in
        shutil.copy(ROOT / "results" / "layrub" / name, directory / "layrub")
    program = f"""
import sys
from importlib import import_module
from pathlib import Path
from paper_figs import style
style.RESULTS = Path({str(directory)!r})
style.use_style()
for script in sorted(Path("paper_figs/layrub").glob(sys.argv[2])):
    style.save(import_module("paper_figs.layrub." + script.stem).draw(), Path(sys.argv[1]) / script.name)
assert "torch" not in sys.modules
"""
    for name, scripts in (("first", "*[0-9].py"), ("second", "figure10.py")):
        (tmp_path / name).mkdir()
        command = [sys.executable, "-W", "error::UserWarning", "-c", program, str(tmp_path / name), scripts]
        subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    first, second = _bytes(tmp_path / "first"), _bytes(tmp_path / "second")
    for files, scripts in ((first, "*[0-9].py"), (second, "figure10.py")):
        assert len(files) == 2 * len(list((ROOT / "paper_figs" / "layrub").glob(scripts)))
    assert second.items() <= first.items()


def test_a_paper_is_run_under_each_alternative_to_its_choices(tmp_path: Path) -> None:
    """With made-up records, which depend on configurations alone: alternatives that change none keep the values."""
    paper = load_paper(ROOT / "experiments" / "mmcnn")
    execution = Execution(jobs.made_up, 2, stop=lambda: None)
    _, numbers = reproduce(paper, compose_cells(paper, needed_cells(paper)), execution, tmp_path)
    vary(ROOT / "experiments" / "mmcnn", numbers, execution, tmp_path)
    base, *varied = read_csv(tmp_path / "mmcnn" / "sensitivity.csv")
    assert base["alternative"] == "as chosen"
    assert [line["alternative"] for line in varied] == [each.name for each in paper.alternatives]
    assert [int(line["values_changed"]) > 0 for line in varied] == [True]
    moved = read_csv(tmp_path / "mmcnn" / "sensitivity_rows.csv")
    assert {row["item"] for row in moved} >= {"Table 2"}
    assert "### What each choice decides" in (tmp_path / "mmcnn" / "summary.md").read_text()
