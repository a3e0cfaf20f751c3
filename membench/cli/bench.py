"""Measure a fixed set of steps on this machine as rows for others, or check files of such rows.

    membench bench record=my_card.json                on the GPU at hand
    membench bench record=my_cpu.json backend=cpu
    membench bench check=my_card.json,results/rows/one.json

A file has peaks and times, versions and a hash. A check accepts or refuses each file by name, with all reasons, and
exits with 1 if one is refused. Packages that add to membench have such files in a folder `rows`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from membench.cli.words import NameIn, read_options, refuse_flags
from membench.core.errors import MembenchError
from membench.core.files import shown


@dataclass(frozen=True)
class Options:
    """Options of the command: the file to write, or those to check."""

    record: Path | None = None
    check: tuple[Path, ...] = ()
    backend: Annotated[str, NameIn(("backend",), left_out=("simulated",))] = "cuda"


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    refuse_flags(words, known=())
    options = Options(**read_options(words, Options))
    if (options.record is None) == (not options.check):
        raise MembenchError("name a file to write, record=FILE, or files to check, check=FILE,FILE")
    return options


def run(options: Options) -> int:
    """Write or check the files, and return the exit code."""
    from membench.conformance.recorded_steps import complaints, record

    if options.record:
        record(options.record, options.backend)
        print(f"wrote {shown(options.record)}")
        return 0
    refused = 0
    for path in options.check:
        reasons = list(complaints(path))
        refused += bool(reasons)
        print(f"{shown(path)}: {'refused: ' + '; '.join(reasons) if reasons else 'accepted'}")
    return int(refused > 0)
