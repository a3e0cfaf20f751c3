"""The home page and the tutorials print what they show, and the site has a page for everything that is exported."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from membench.cli.main import main
from tests.helpers.pages import PAGES, code_of

OF_COMMANDS = ("docs/index.md", "docs/tutorials/first_answers.md")
SHOWN = [
    (command, output)
    for page in OF_COMMANDS
    for command, output in re.findall(
        r"^    membench (.+)\n\n```text\n([^`]+)```$", PAGES[page].read_text(), re.MULTILINE
    )
]


def is_shown(output: str, block: str) -> bool:
    """Return whether a block is a program's output, where a line of three dots stands for any lines."""
    pattern = ".*".join(
        re.escape(part.strip("\n")) for part in re.split(r"^\.\.\.$", block, flags=re.MULTILINE)
    )
    return re.fullmatch(pattern, output.strip("\n"), re.DOTALL) is not None


@pytest.mark.parametrize(("command", "block"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_its_page_shows(
    command: str,
    block: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)) == 0
    output = capsys.readouterr().out
    assert is_shown(output, block), output


def test_every_page_of_commands_shows_outputs() -> None:
    assert len(SHOWN) == 7


def test_the_program_of_the_tutorial_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for code in code_of("docs/tutorials/first_step.md"):
        if code.language == "python":
            exec(code.text, names)
        else:
            output = capsys.readouterr().out
            assert is_shown(output, code.text), output
