"""Messages and exit codes of the `membench` command: 130 interrupted, 2 wrong input, 1 a defect of membench."""

import sys
import traceback

from membench.cli.commands import groups_of
from membench.core.errors import MembenchError
from membench.core.files import complaint

INTERRUPTED = "interrupted; finished cells are kept, and the same command continues from there"


def exit_code(command: str, error: BaseException) -> int:
    """Print an error, in one line unless it is a defect, and return the exit code.

    Args:
        command: the sub-command that raised it; empty where none was chosen.
    """
    if isinstance(error, KeyboardInterrupt):
        line, code = INTERRUPTED, 130
    elif line := _explained(command, error):
        code = 2
    else:
        traceback.print_exception(error)
        return 1
    print(f"{f'membench {command}'.rstrip()}: {line}", file=sys.stderr)
    return code


def _explained(command: str, error: BaseException) -> str:
    """Return one line about an error that the user can correct; empty for any other."""
    if sys.modules.get("hydra"):  # `membench measure` runs where Hydra is not installed
        from membench.cli.command_line import HYDRA_ERRORS, explain

        if isinstance(error, HYDRA_ERRORS):
            return explain(error, groups_of(command))
    return complaint(error) if isinstance(error, MembenchError | OSError) else ""
