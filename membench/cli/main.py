"""Entry point of the `membench` command: choose a sub-command, answer ``--help``, and report errors."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TextIO

import membench
from membench.cli.commands import COMMANDS, LABORATORY_COMMANDS, command_help, commands_here, module_of, overview
from membench.core.errors import MembenchError, unknown
from membench.core.extras import require
from membench.core.files import complaint
from membench.core.libraries.garbage import collect_less_often
from membench.core.libraries.messages import silent_libraries
from membench.core.terminal import complain, show_help

INTERRUPTED = "interrupted; finished cells are kept, and the same command continues from there"
TERMINATED = 143
"""The exit code of a program that SIGTERM ends: 128 + SIGTERM."""
STDOUT_CLOSED = 141
"""The exit code of a program that the closed pipe of its stdout ends, ``| head``: 128 + SIGPIPE."""


def main(words: Sequence[str] | None = None) -> int:
    """Run a sub-command with the words after it, or `run` with all words (default `sys.argv`); return the exit code.

    Without a word, print the help.
    """
    words = list(sys.argv[1:] if words is None else words) or ["--help"]
    first = words[0] if words else ""
    if first.isidentifier() and first not in COMMANDS:
        return exit_code("", MembenchError(unknown("command", first, commands_here())))
    command = words.pop(0) if first in COMMANDS else "run"
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # for models of the user's own, as with `python -m membench`
    _open_closed_streams()
    try:
        with _raising_at_sigterm():
            return _run(command, words, is_named=first in COMMANDS)
    except (Exception, KeyboardInterrupt) as error:
        return exit_code(command, error)
    finally:
        _give_up_broken_stdout()


class Terminated(KeyboardInterrupt):
    """End of the program by SIGTERM, on which it cleans up as on an interrupt."""


@contextmanager
def _raising_at_sigterm() -> Iterator[None]:
    """Raise `Terminated` at SIGTERM, where nothing else handles it; only the main thread can handle signals."""

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise Terminated

    is_free = threading.current_thread() is threading.main_thread()
    is_free = is_free and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_free:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if is_free and signal.getsignal(signal.SIGTERM) is terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(command: str, words: list[str], *, is_named: bool) -> int:
    """Run a sub-command, or print its help, and return the exit code; all that is printed has left then."""
    if {"-h", "--help"} & set(words):
        show_help(command_help(command) if is_named else overview())
        return 0
    if "--version" in words:
        print(f"membench {membench.__version__}", flush=True)
        return 0
    collect_less_often()
    with silent_libraries():
        name = module_of(command, words)
        if name.startswith(LABORATORY_COMMANDS):
            require("lab", "a command of the laboratory")
        module = import_module(name)
        code: int = module.run(module.parse(words))
    sys.stdout.flush()
    return code


def exit_code(command: str, error: BaseException) -> int:
    """Print an error of a command ("" for none), in one line unless it is a defect, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        return STDOUT_CLOSED
    interrupted = isinstance(error, KeyboardInterrupt)
    line = INTERRUPTED if interrupted else _explained(command, error)
    if not line:
        traceback.print_exception(error)
        return 1
    complain(f"membench {command}".rstrip(), line)
    return (TERMINATED if isinstance(error, Terminated) else 130) if interrupted else 2


def _open_closed_streams() -> None:
    """Open stdout and stderr if they are closed (``>&-``), or else the next file that is opened takes their place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere())


def _give_up_broken_stdout() -> None:
    """Replace stdout if it cannot be written: the interpreter would write what is left, and print its error."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = _nowhere()


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _explained(command: str, error: BaseException) -> str:
    """Return one line about an error that the user can correct; empty for any other."""
    if sys.modules.get("hydra"):  # `membench measure` runs where Hydra is not installed
        from membench.cli.command_line import HYDRA_ERRORS, explain

        if isinstance(error, HYDRA_ERRORS):
            return explain(error, command)
    return complaint(error) if isinstance(error, MembenchError | OSError) else ""
