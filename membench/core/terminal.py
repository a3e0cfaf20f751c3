"""The terminal: its width and styles, and one progress bar for all that takes time."""

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

from membench.core.document import RED, Element, as_text, folded

if TYPE_CHECKING:
    from tqdm import tqdm

HELP_COLUMNS = 110
"""The most characters of a line of help."""


def columns(stream: TextIO | None = None) -> int | None:
    """Return the characters of a line: `$COLUMNS`, or those of a terminal; None: lines are not folded.

    Args:
        stream: None: stdout.
    """
    stream = stream or sys.stdout
    if (given := os.environ.get("COLUMNS", "")).isdecimal() and int(given):
        return int(given)
    return os.get_terminal_size(stream.fileno()).columns or None if _is_terminal(stream) else None


def has_styles(stream: TextIO | None = None) -> bool:
    """Return whether a stream is a terminal with colours that the user has not refused (https://no-color.org)."""
    is_refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not is_refused and _is_terminal(stream or sys.stdout)


def show(elements: Iterable[Element]) -> None:
    """Print elements to stdout, in its width and its styles."""
    print(as_text(elements, columns(), paint=has_styles()), flush=True)


def show_help(elements: Iterable[Element]) -> None:
    """Print a help to stdout, in lines that are easy to read, wherever it goes."""
    print(as_text(elements, min(columns() or HELP_COLUMNS, HELP_COLUMNS), paint=has_styles()), flush=True)


def complain(origin: str, message: str) -> None:
    """Print what is wrong to stderr: one line, which a terminal's width folds."""
    width = columns(sys.stderr) if _is_terminal(sys.stderr) else None
    text = "\n".join(folded(f"{origin}: {message}", width))
    if has_styles(sys.stderr):
        text = text.replace(f"{origin}:", f"\033[{RED}m{origin}:\033[0m", 1)
    print(text, file=sys.stderr)


def progress_bar(what: str, unit: str, total: int | None = None, *, shown: bool = True) -> "tqdm[Any]":
    """Return a bar on stderr that counts, and vanishes when it is done; nothing where stderr is not a terminal.

    Args:
        what: is counted, such as ``"cells"``.
    """
    from tqdm import tqdm

    return tqdm(desc=what, unit=unit, total=total, leave=False, dynamic_ncols=True, disable=None if shown else True)


def _is_terminal(stream: TextIO) -> bool:
    return not stream.closed and stream.isatty()
