"""What pages show of commands' outputs.

    python -m tests.helpers.shown

runs every such command and replaces what its output does not have any more: a line of a block by the nearest line.
"""

import contextlib
import io
import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches

from membench.cli.main import main as command
from tests.helpers.pages import PAGES

OF_COMMANDS = ("README.md", "docs/index.md", "docs/tutorials/first_answers.md")
_BLOCK = re.compile(r"^    membench (.+)\n\n```text\n([^`]+)```$", re.MULTILINE)
DOTS = "..."
"""A line of a block that stands for any lines."""


def shown() -> dict[str, list[str]]:
    """Return the blocks by the command whose output they are."""
    found: dict[str, list[str]] = {}
    for page in OF_COMMANDS:
        for words, block in _BLOCK.findall(PAGES[page].read_text()):
            found.setdefault(words, []).append(block)
    return found


def is_shown(output: str, block: str) -> bool:
    """Return whether a block is a program's output."""
    pattern = ".*".join(re.escape(part.strip("\n")) for part in re.split(r"^\.\.\.$", block, flags=re.MULTILINE))
    return re.fullmatch(pattern, output.strip("\n"), re.DOTALL) is not None


def renewed(block: str, output: Sequence[str]) -> str:
    """Return a block with the nearest line of an output in place of each line that the output lacks."""
    lines = [
        line if line == DOTS or line in output else next(iter(get_close_matches(line, output, 1)), line)
        for line in block.splitlines()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    for words, blocks in shown().items():
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            command(shlex.split(words))
        for block in blocks:
            new = renewed(block, output.getvalue().splitlines())
            for page in OF_COMMANDS:
                PAGES[page].write_text(PAGES[page].read_text().replace(block, new))
            state = "as it was" if new == block else "renewed"
            print(words, state if is_shown(output.getvalue(), new) else "needs another form")


if __name__ == "__main__":
    main()
