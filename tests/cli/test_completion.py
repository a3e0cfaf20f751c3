"""`membench completion`: what the tab key offers, in Python and in bash itself."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from membench.cli.commands import COMMANDS
from membench.cli.completion import completions
from membench.cli.main import main
from membench.cli.option_values import CHOICES
from membench.core.configuration import ROOT, names
from membench.planning.parallel.exchange import Exchange
from membench.planning.rewrites.micro_batch import FASTEST, FITTED


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("membench ru", ["run"]),
        ("membench strat", ["strategy="]),  # without a command, those of run
        ("membench run stri", ["strict="]),
        ("membench run strategy=layrub_", ["layrub_hybrid", "layrub_inter", "layrub_intra"]),
        ("membench run -m strategy=eager,gi", ["eager,gist"]),
        ("membench run strategy=layrub_inter strategy.", ["strategy.fixed_region=", "strategy.only_needed="]),
        ("membench run strategy=epmc strategy.den", ["strategy.density="]),
        ("membench train data=co", ["coil100"]),
        ("membench measure models=lstm_s", ["lstm_speech"]),
        ("membench calibrate device=", ["cuda"]),
        ("membench timeline --con", ["--config-dir"]),
        ("membench run batch_size=", ["largest"]),
        ("membench run rerun=", ["missing", "failed", "all"]),
        ("membench predict precision=amp", ["amp_bf16", "amp_fp16"]),
        ("membench predict breakdown=", ["true", "false"]),
        ("membench frontier rerun=", ["missing", "all"]),
        ("membench app show=t", ["true"]),
        ("membench advise output=h", ["html"]),
        ("membench run seed=", []),
        ("membench run nothing", []),
    ],
)
def test_the_words_that_may_end_a_line(line: str, words: list[str]) -> None:
    assert completions(line) == words


def test_the_words_of_micro_batches_and_exchanges_are_those_that_planning_has() -> None:
    assert set(CHOICES["exchange"]) == set(Exchange)
    assert set(CHOICES["micro_batch"]) == {FITTED, FASTEST}


def test_commands_are_offered_first_and_only_first() -> None:
    assert completions("membench ")[: len(COMMANDS)] == list(COMMANDS)
    assert not set(COMMANDS) & set(completions("membench run "))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_that_is_offered_is_in_the_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    shown = capsys.readouterr().out
    for word in completions(f"membench {command} "):
        assert word.rstrip("=") in shown or word in ("--help", "--version")


SHELLS = {
    "bash": """
eval "$({program} completion bash)"
COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}
_membench {program} 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    # what belongs to zsh's line editor is replaced by what shows the words
    "zsh": """
compdef() {{ }}; compset() {{ }}
compadd() {{ while [[ $1 != -- ]]; do shift; done; shift; (( $# )) && print -l -- "$@" }}
eval "$({program} completion zsh)"
words=({program}); LBUFFER="{line}"
_membench
""",
    "fish": """
set -x PATH (dirname {program}) $PATH
{program} completion fish | source
complete -C "{line}" | string replace 'model=' ''
""",
}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "membench"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m membench "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_with_its_script(program: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    script = SHELLS[shell].format(program=program, line="membench run model=alexnet_d")
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [name for name in names("model") if name.startswith("alexnet_d")] != []


@pytest.mark.parametrize("words", [[], ["tcsh"], ["zsh", "bash"]])
def test_another_shell_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
