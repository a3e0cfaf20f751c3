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
from membench.cli.commands import COMMANDS, command_help, groups_of, overview
from membench.cli.main import INTERRUPTED, STDOUT_CLOSED, main
from membench.core.configuration import ROOT
from membench.lab.cli import fit, report


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.strip() == overview()
    for command in COMMANDS:
        assert f"\n  {command:<10} {command_help(command).splitlines()[0]}\n" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_examples_of_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--nothing", "-h"]) == 0
    assert f"\n    membench {command}" in capsys.readouterr().out


def test_help_has_the_groups_and_options_of_the_configuration() -> None:
    shown = command_help("run")
    assert "\ndevice: a10, a100_40gb, " in shown
    assert "\nbudget: null  # the most that a step may hold" in shown
    assert "\nrerun: missing " in shown  # of running.yaml
    assert "_target_" not in shown
    assert "\ndevice: " in command_help("predict") and "\nrerun: " not in command_help("predict")
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
        assert field.name.replace("config_dir", "--config-dir") in command_help(command) or field.name in given_bare


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
    assert done.stderr.startswith("membench measure: models is one of alexnet, ")


@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)])
def test_the_version_is_that_of_membench(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--version"]) == 0
    assert capsys.readouterr().out == f"membench {membench.__version__}\n"


def test_a_command_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mesure", "models=lenet"]) == 2
    assert (
        capsys.readouterr().err
        == f"membench: there is no command 'mesure'; there are: {', '.join(COMMANDS)}; did you mean 'measure'?\n"
    )


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
