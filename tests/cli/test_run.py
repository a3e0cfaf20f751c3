"""`membench run`: a summary, a record, a sweep, one-line errors, and its W&B runs."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from membench.cli import run
from membench.cli.callback import SweepCallback
from membench.cli.main import main
from membench.core.configuration import ROOT
from membench.core.record import Outcome, Record


def _run(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from membench.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, str(ROOT), *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow
def test_sweep_prints_a_summary_and_writes_a_record_of_each_cell_and_one_offline_run(tmp_path: Path) -> None:
    done = _run(tmp_path, "-m", "model=lenet", "batch_size=4,8", "tracking=offline")
    assert done.returncode == 0, done.stderr
    assert "lenet, simulated on k40m under Caffe\n  batch_size  " in done.stdout
    assert "samples/s" in done.stdout
    records = [json.loads(path.read_text()) for path in sorted(tmp_path.rglob("record.json"))]
    assert sorted(record["configuration"]["batch_size"] for record in records) == [4, 8]
    assert {record["outcome"] for record in records} == {Outcome.OK}
    assert all(record["metrics"]["peak_memory_bytes"] > 0 for record in records)
    assert all(record["provenance"] == {} for record in records)
    runs = list(tmp_path.glob("outputs/wandb/offline-run-*"))
    assert len(runs) == 3  # the sweep's and its cells'
    printed = [line for line in done.stdout.splitlines() if line.startswith("W&B run outputs/wandb/offline-run-")]
    assert len(printed) == 1 and printed[0].endswith("; `make sync` uploads them")


@pytest.mark.slow
def test_flags_stand_anywhere_and_the_user_chooses_the_folders_of_jobs(tmp_path: Path) -> None:
    subdir = r"hydra.sweep.subdir=cell/${hydra.job.num}-${batch_size}"
    done = _run(tmp_path, "model=lenet", "-m", "batch_size=range(9,12)", subdir, "dry_run=true")
    assert (done.returncode, done.stderr) == (0, "")
    *cells, total = done.stdout.splitlines()
    assert [line.split()[:2] for line in cells] == [["missing", f"batch_size={size}"] for size in (9, 10, 11)]
    assert total.startswith("3 cells: 3 missing; 3 to run")


def test_an_online_run_without_a_key_ends_before_the_first_cell(tmp_path: Path) -> None:
    done = _run(
        tmp_path, "-m", "model=lenet", "batch_size=4,8", "tracking=online", WANDB_API_KEY="", HOME=str(tmp_path)
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("membench run: W&B cannot log online (")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.rglob("record.json"))


def test_flags_that_do_not_go_together_are_one_line(tmp_path: Path) -> None:
    done = _run(tmp_path, "--resolve", "model=lenet")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(("error", "code"), [(OSError("disk full"), 2), (KeyError("x"), 1)])
def test_an_error_in_the_summary_ends_the_command(error: Exception, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(SweepCallback, "_summarize", fail)
    with pytest.raises(SystemExit) as end:
        SweepCallback().on_run_end(OmegaConf.create({"hydra": {"run": {"dir": "."}}}))
    assert end.value.code == code


def test_a_job_that_died_is_one_line_with_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submitit = pytest.importorskip("submitit")

    def wait() -> None:
        raise submitit.core.utils.UncompletedJobError("Job 7_4 with path logs/7_4\nhas no output\nstderr\n...")

    monkeypatch.setattr(run, "_task", wait)
    monkeypatch.setattr(sys, "argv", ["membench"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert main(["run", "model=lenet"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("membench run: Job 7_4 with path logs/7_4 has no output; ")
    assert complaint.count("\n") == 1


@pytest.mark.slow
def test_a_measured_record_has_its_provenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "model=lenet", "batch_size=2", "backend=cpu", "strategy=eager"]) == 0
    assert "measured on this machine's CPU" in capsys.readouterr().out
    record = json.loads(next(tmp_path.rglob("record.json")).read_text())
    assert record["source"] == "measured"
    framework = record["configuration"]["framework"]["_target_"]
    assert framework.endswith("PyTorch")  # Caffe, the default, is simulated only
    assert record["configuration"]["device"] is None
    assert {"commit", "clean", "versions", "time"} <= record["provenance"].keys()
    assert record["metrics"]["peak_memory_bytes"] == record["metrics"]["required_memory_bytes"]
    assert len(record["samples"]["images_per_s"]) >= 3


def test_a_wrong_name_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = _run(tmp_path, "model=resnet51")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("membench run: model 'resnet51' is not known; did you mean 'resnet1517'?")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_is_not_run_again_says_where_it_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = []
    for more in ([], [], ["rerun=all"]):
        assert main(["run", "model=lenet", "batch_size=4", "strategy=eager", *more]) == 0
        printed.append(capsys.readouterr().out)
    first, second, third = printed
    assert ", copied from outputs/records/simulated; rerun=all runs it again\n" in second
    assert "copied" not in first + third
    assert first.splitlines()[:-1] == second.splitlines()[:-1]
    assert "transferred" not in first  # eager moves nothing


def test_records_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = _run(tmp_path, "model=lenet", "records=file/records")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("membench run: file/records: Not a directory")


def test_a_folder_that_cannot_be_written_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "outputs").touch()
    done = _run(tmp_path, "model=lenet", "dry_run=true")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "Not a directory; name a place that can be read and written" in done.stderr


@pytest.mark.slow
def test_two_runs_in_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    for _ in range(2):
        assert _run(tmp_path, "model=lenet", "dry_run=true").returncode == 0
    folders = [path.parent.name for path in tmp_path.glob("outputs/*/*/cell.json")]
    assert len(folders) == 2
    assert all(re.fullmatch(r"\d\d-\d\d-\d\d-\d{6}", name) for name in folders)


def test_the_command_starts_without_what_takes_seconds() -> None:
    program = """
import sys
import membench.cli.run, membench.cli.callback, membench.lab.cli.reproduce, membench.lab.cli.train
assert not {"torch", "pandas", "matplotlib", "wandb", "scipy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


def test_the_core_needs_neither_hydra_nor_wandb_nor_numba() -> None:
    program = """
import sys
for name in ("hydra", "omegaconf", "antlr4", "wandb", "seaborn", "numba"):
    sys.modules[name] = None
import membench.steps.compile, membench.sweep.cells.cell, membench.strategies.layrub.strategy, membench.strategies.epmc
import membench.lab.papers.reading.quantities, membench.cli.measure
assert membench.compile
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


@pytest.mark.slow
def test_a_network_of_ones_own_is_run_from_the_folder_that_holds_it(tmp_path: Path) -> None:
    """As the installed command does, without the folder on Python's path: tokens by name, a function as loss."""
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\n\n"
        "class Reader(nn.Module):\n"
        "    def __init__(self, width=4):\n"
        "        super().__init__()\n"
        "        self.embed, self.score = nn.Embedding(100, width), nn.Linear(width, 3)\n\n"
        "    def forward(self, ids, mask):\n"
        "        return {'scores': self.score((self.embed(ids) * mask.unsqueeze(-1)).mean(1))}\n\n\n"
        "def criterion(output, label, smoothing):\n"
        "    return nn.functional.cross_entropy(output['scores'], label, label_smoothing=smoothing)\n"
    )
    words = [
        "model._target_=nets.Reader",
        "model.module.width=8",
        "model.inputs={ids:{shape:[12],below:100},mask:{shape:[12],value:1}}",
        "model.targets.label={shape:[],below:3}",
        "model.loss._target_=nets.criterion",
        "model.loss.smoothing=0.1",
        "batch_size=16",
    ]
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from membench.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", path, "strategy=eager", "device=rtx3090", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Reader, batch 16, eager, simulated on rtx3090" in done.stdout
    [record] = [Record.from_json(path.read_text()) for path in tmp_path.glob("outputs/*/*/record.json")]
    weights_bytes, batch_bytes = 4 * (100 * 8 + 8 * 3 + 3), 8 * (16 * 12 * 2 + 16)
    assert record.metrics["peak_memory_bytes"] > weights_bytes + batch_bytes


OWN = "model._target_=tests.sweep.cells.test_model.Sum"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([OWN], r"model: Sum has no description of its batch; give model.input_shape=\[3,224,224\] model.classes=1000"),
        ([OWN, "model.input_shape=[3]"], "give model.classes=1000, or model.inputs and model.targets"),
        ([OWN, "model=resnet50"], "choose two models; leave one of them out"),
        ([OWN, "model.clases=3"], "option 'model.clases' is not known; did you mean 'classes'.* There are: .*"),
        ([OWN, "model.inputs.x={shape:[3],blow:4}"], "model.inputs.x.blow: a tensor .* did you mean 'below'"),
        ([OWN, "model.inputs.images.shape=[3]"], "model: the loss is called with the module's output and 0 targets"),
        ([OWN, "model.input_shape=[3]", "model.classes=4", "model.module.wide=1"], "unexpected keyword argument "
        "'wide'"),
        ([OWN, "model.input_shape=[3]", "model.classes=4", "model.loss._target_=nn.Loss"], "nn.Loss cannot be "
        "imported"),
        (["model._target_=sum", "model.input_shape=[3]", "model.loss=null"], "model: sum cannot be imported"),
    ],
)  # fmt: skip
def test_what_a_network_of_ones_own_lacks_is_one_line(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(expected, line), line


def test_a_run_leaves_a_program_its_loggers(capsys: pytest.CaptureFixture[str]) -> None:
    """Hydra's configuration of logging would disable those that exist, and with them the warnings of a capture."""
    existing = logging.getLogger("membench.of_a_program")
    assert main(["run", "model=lenet", "device=k40m", "batch_size=2"]) == 0
    assert capsys.readouterr().out
    assert not existing.disabled
