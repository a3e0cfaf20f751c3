"""The `membench` command: sub-commands, help, exit codes and imports."""

import logging
import os
import shlex
import subprocess
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import membench
from membench.cli import calibrate, measure
from membench.cli.commands import COMMANDS, command_help, docstring, groups_of
from membench.cli.main import INTERRUPTED, STDOUT_CLOSED, main
from membench.core.configuration import ROOT
from membench.core.document import as_text
from membench.lab.cli import fit, report


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command:<11} {docstring(command).splitlines()[0].split(' ')[0]} " in shown
    assert main([]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_examples_of_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--nothing", "-h"]) == 0
    assert f"\n    membench {command}" in capsys.readouterr().out


def test_help_has_the_groups_and_options_of_the_configuration() -> None:
    shown = as_text(command_help("run"))
    assert "\n  device: a10, a100_40gb, " in shown
    assert "\n  budget                 the most that a step may hold" in shown
    assert "\n  rerun=missing " in shown  # of running.yaml
    assert "_target_" not in shown
    of_predict = as_text(command_help("predict"))
    assert "\n  device: " in of_predict and "\n  rerun" not in of_predict
    assert groups_of("train") == ("model", "data", "strategy", "backend")


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("measure", measure.Options),
        ("calibrate", calibrate.Options),
        ("fit", fit.Options),
        ("report", report.PageOptions),
        ("report", report.CompareOptions),
    ],
)
def test_help_names_the_options_that_a_module_declares(command: str, settings: type[Any]) -> None:
    given_bare = {"papers", "before", "after"}
    for field in fields(settings):
        name = field.name.replace("config_dir", "--config-dir")
        assert name in as_text(command_help(command)) or field.name in given_bare


def test_help_imports_nothing_that_takes_time() -> None:
    program = """
import sys
from membench.cli.main import main
for words in (["--help"], *([command, "--help"] for command in sys.argv[1:])):
    assert main(words) == 0
slow = {"torch", "hydra", "omegaconf", "wandb", "pandas", "numpy", "matplotlib"} & set(sys.modules)
assert not slow, slow
"""
    subprocess.run(
        [sys.executable, "-c", program, *COMMANDS], cwd=ROOT, check=True, timeout=60, stdout=subprocess.DEVNULL
    )


def test_a_wrong_word_does_not_wait_for_torch() -> None:
    program = """
import sys
from membench.cli.main import main
several = ["model=gpt2", "cluster=dgx_h100"]
for words in ([*words, "bogus=1"] for command in sys.argv[1:] for words in ([command], [command, *several])):
    assert main(words) == 2, words
    assert "torch" not in sys.modules, words
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *COMMANDS], cwd=ROOT, check=True, timeout=60, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2 * len(COMMANDS)


def test_measure_needs_neither_hydra_nor_wandb() -> None:
    program = """
import sys
for name in ("hydra", "omegaconf", "antlr4", "wandb"):
    sys.modules[name] = None
sys.argv[1:] = ["measure", "models=resnet51"]
import runpy
runpy.run_module("membench", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("membench measure: models 'resnet51' is not known; did you mean 'resnet1517'")


@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)])
def test_the_version_is_that_of_membench(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--version"]) == 0
    assert capsys.readouterr().out == f"membench {membench.__version__}\n"


def test_a_command_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mesure", "models=lenet"]) == 2
    answer = f"membench: command 'mesure' is not known; did you mean 'measure'? There are: {', '.join(COMMANDS)}\n"
    assert capsys.readouterr().err == answer


def test_words_without_a_command_are_those_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model=resnet51"]) == 2
    assert capsys.readouterr().err.startswith("membench run: model 'resnet51' is not known")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, f"membench report: {INTERRUPTED}\n"),
        (FileNotFoundError(2, "No such file", "x.csv"), 2, "membench report: x.csv: No such file; name a place"),
        (KeyError("x"), 1, "Traceback (most recent call last):\n"),
    ],
)
def test_every_error_has_its_exit_code(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(report, "run", fail)
    assert main(["report"]) == code
    assert capsys.readouterr().err.startswith(message)


CLOSED_FROM_THE_BEGINNING = "exec >&-; exec {}"
FULL = "exec {} >/dev/full"


@pytest.mark.parametrize("words", ["-h", "run --help", "run model=lenet dry_run=true"])
def test_a_reader_that_has_enough_ends_the_command_without_a_word(words: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "membench", *words.split()]
    done = _in_a_shell("exec {}", command, tmp_path, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (STDOUT_CLOSED, "")


@pytest.mark.parametrize(
    ("shell", "code", "complaint"),
    [
        (CLOSED_FROM_THE_BEGINNING, 0, ""),
        (
            FULL,
            2,
            "membench run: what is printed, or a temporary file: No space left on device; make room there, or name "
            "another place\n",
        ),
    ],
)
def test_stdout_that_is_closed_or_full_is_at_most_one_line(
    shell: str, code: int, complaint: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "membench", "run", "model=lenet", "dry_run=true"]
    done = _in_a_shell(shell, command, tmp_path, stdout=None)
    assert (done.returncode, done.stderr) == (code, complaint)
    assert list(tmp_path.glob("outputs/*/*/cell.json"))


def _in_a_shell(
    shell: str, command: list[str], directory: Path, stdout: int | None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["/bin/sh", "-c", shell.format(shlex.join(command))],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )


TERMINATED = """
import os, signal, sys, tempfile
from membench.lab.cli import report
from membench.cli.main import main
from membench.sweep.processes.worker import Workers

def wait(_):
    with Workers() as workers:
        workers._warm()  # has a folder for its child
        print(len(os.listdir(tempfile.gettempdir())), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

report.run = wait
sys.exit(main(["report"]))
"""


def test_a_command_that_is_terminated_says_so_and_leaves_no_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (143, f"membench report: {INTERRUPTED}\n")
    assert done.stdout == "1\n"
    assert not list(tmp_path.iterdir())


def test_messages_of_libraries_do_not_reach_the_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(_: object) -> int:
        warnings.warn("quantization state not initialized", UserWarning, stacklevel=1)
        logger = logging.getLogger("a.library")
        logger.addHandler(handler := logging.StreamHandler(sys.stderr))
        logger.warning("deprecated")
        logging.getLogger("another.library").warning("deprecated too")
        logger.error("broken")
        logger.removeHandler(handler)
        print("the answer")
        return 0

    monkeypatch.setattr(report, "run", noisy)
    assert main(["report"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("the answer\n", "broken\n")
    with pytest.warns(UserWarning, match="again"):
        warnings.warn("again", UserWarning, stacklevel=1)
    assert logging.getLogger("a.library").isEnabledFor(logging.WARNING)


# ---- width ------------------------------------------------------------------------------------------


STEP = ["model=lenet", "device=rtx3090", "batch_size=4"]
ANSWERS = {
    "predict": ["predict", *STEP, "optimizer=adamw", "breakdown=true"],
    "predict several": ["predict", "model=gpt2", "cluster=dgx_h100", "parallel={fsdp: 8}", "batch_size=1"],
    "advise": ["advise", *STEP, "methods=pytorch,joint", "largest=plain", "levers=false", "processes=1"],
    "run": ["run", *STEP, "strategy=vdnn_all"],
    "sweep": ["run", "-m", *STEP, "strategy=eager,vdnn_all,epmc", "seed=0,1"],
    "plan": ["run", "-m", *STEP, "strategy=eager,vdnn_all", "dry_run=true"],
    "report": ["report", "sweep"],
    "compare": ["report", "compare", "outputs/records", "outputs/records"],
    "frontier": ["frontier", *STEP, "strategies=rotor", "budgets=2"],
    "timeline": ["timeline", *STEP],
    **{f"{command} --help": [command, "--help"] for command in COMMANDS},
    "help": [],
}
"""Commands that print an answer, in an order in which each finds what it reads."""


@pytest.mark.slow
def test_no_answer_is_wider_than_the_terminal_or_has_a_broken_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(["-m", "membench", *ANSWERS["sweep"]])  # so that the records are there each time
    for name, words in ANSWERS.items():
        said = {}
        for width in ("80", "200"):
            monkeypatch.setenv("COLUMNS", width)
            said[width] = run(["-m", "membench", *words]) if "run" in words else _said(words, capsys)
            lines = said[width].splitlines()
            assert lines, name
            assert all(len(line) <= int(width) or len(line.split()) == 1 for line in lines), (name, width)
        narrow, wide = (set(text.replace("\\\n", " ").split()) for text in said.values())
        broken = {word for word in narrow ^ wide if not any(character.isdigit() for character in word)}
        assert broken <= {"#"}, name


def _said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) in (0, 1)
    return capsys.readouterr().out


def run(words: list[str]) -> str:
    """Return what a command prints in a process of its own, as Hydra's own entry needs."""
    return subprocess.run([sys.executable, *words], check=True, timeout=120, capture_output=True, text=True).stdout
