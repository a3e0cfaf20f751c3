"""Ask in a browser: choose a network, a card or a cluster and the step; see its memory, its time and what makes it fit.

    membench app                the page at http://127.0.0.1:5006, which opens in the browser
    membench app port=8080      at another port of this machine
    membench app show=false     opens no browser

Needs pip install 'membench[app]'. The page is for this machine alone: it runs modules of the folder that it was started
in, as the other commands do. What it shows are the answers of `membench predict` and `membench advise`, whose words it
prints.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from membench.cli.words import read_options, refuse_flags
from membench.core.extras import require

ADDRESS = "127.0.0.1"


@dataclass(frozen=True)
class Options:
    """Where the page is, and whether a browser opens it."""

    port: int = 5006
    show: bool = True


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    refuse_flags(words, known=())
    return Options(**read_options(words, Options))


def run(options: Options) -> int:
    """Serve the page until it is interrupted, and return the exit code.

    Raises:
        MembenchError: the package that makes the page is not installed.
    """
    require("app", "the page")
    import panel

    from membench.cli.app_page import page

    panel.serve(page, address=ADDRESS, port=options.port, show=options.show, title="membench")
    return 0
