"""Measure a fixed set of steps on this machine as rows for others, plan a fixed suite, or check files of these.

    membench bench record=my_card.json                on the GPU at hand
    membench bench record=my_cpu.json backend=cpu
    membench bench record=mine.json planner=my_method   the suite of planners, by a strategy
    membench bench check=my_card.json,results/rows/one.json
    membench bench page=results/planners                the page of all planners with a file there

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
    """Options of the command: the file to write, those to check, or the folder whose page is made."""

    record: Path | None = None
    check: tuple[Path, ...] = ()
    page: Path | None = None
    planner: Annotated[str, NameIn(("strategy",))] = ""
    backend: Annotated[str, NameIn(("backend",), left_out=("simulated",))] = "cuda"


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    refuse_flags(words, known=())
    options = Options(**read_options(words, Options))
    if sum(map(bool, (options.record, options.check, options.page))) != 1:
        raise MembenchError(
            "name a file to write, record=FILE, files to check, check=FILE,FILE, or a folder, page=FOLDER"
        )
    return options


def run(options: Options) -> int:
    """Write or check the files, and return the exit code."""
    from membench.conformance import planners
    from membench.conformance.recorded_steps import complaints, record

    if options.page:
        print(f"wrote {shown(planners.write_page(options.page))}")
        return 0
    if options.record:
        if options.planner:
            planners.record(options.record, options.planner)
        else:
            record(options.record, options.backend)
        print(f"wrote {shown(options.record)}")
        return 0
    refused = 0
    for path in options.check:
        reasons = list(complaints(path))
        refused += bool(reasons)
        print(f"{shown(path)}: {'refused: ' + '; '.join(reasons) if reasons else 'accepted'}")
    return int(refused > 0)
