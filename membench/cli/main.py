"""Entry point of the `membench` command: choose a sub-command, answer ``--help``, and report errors."""

import sys
from collections.abc import Sequence
from importlib import import_module

from membench.cli.commands import COMMANDS, command_help, overview
from membench.cli.errors import exit_code
from membench.core.errors import MembenchError

_HELP = {"-h", "--help"}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        words: a sub-command and its own words; without a sub-command they are those of `run`. Default: `sys.argv`.
    """
    words = list(sys.argv[1:] if words is None else words)
    first = words[0] if words else ""
    if first in COMMANDS:
        command = words.pop(0)
    elif first.isidentifier():
        known = f"there is no command {first!r}; there are: {', '.join(COMMANDS)}"
        return exit_code("", MembenchError(known))
    else:
        command = "run"
    if _HELP & set(words):
        print(command_help(command) if first in COMMANDS else overview())
        return 0
    try:
        module = import_module(f"membench.cli.{command}")
        code: int = module.run(module.parse(words))
    except (Exception, KeyboardInterrupt) as error:
        return exit_code(command, error)
    return code
