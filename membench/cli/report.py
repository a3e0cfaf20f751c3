"""Show the records of a folder as a table, or compare two folders of records.

    membench report sweep                    the records of outputs/records
    membench report sweep FOLDER             those of a sweep, outputs/<date>/<time>, or of any folder
    membench report compare A B              the cells of two folders side by side: two commits, two devices
    membench report compare A B tolerance=0.05

output=json, csv or markdown prints the table in another form. `compare` exits with 0 if nothing differs and with 1
otherwise, as diff does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from membench.cli.words import FLAG, read_options, refuse_flags, split
from membench.core.checks import NOT_NEGATIVE
from membench.core.errors import MembenchError, unknown
from membench.core.result import Output, print_answer

TASKS = ("sweep", "compare")
KEPT = Path("outputs") / "records"


@dataclass(frozen=True)
class SweepOptions:
    """Whose records to show."""

    folder: Annotated[Path, FLAG] = KEPT
    output: Output = Output.TEXT


@dataclass(frozen=True)
class CompareOptions:
    """Two folders of records, and the relative difference up to which two numbers count as equal."""

    before: Annotated[Path, FLAG]
    after: Annotated[Path, FLAG]
    tolerance: Annotated[float, NOT_NEGATIVE] = 0.01
    output: Output = Output.TEXT


def parse(words: Sequence[str]) -> SweepOptions | CompareOptions:
    """Return what the words ask for."""
    refuse_flags(words, known=())
    bare, options = split(words)
    task, *folders = bare or [""]
    if task == "compare":
        given = read_options(options, CompareOptions)
        if len(folders) != 2:
            raise MembenchError(f"compare takes two folders of records, not {len(folders)}")
        return CompareOptions(Path(folders[0]), Path(folders[1]), **given)
    if task != "sweep":
        raise MembenchError(unknown("report", task, TASKS))
    if len(folders) > 1:
        raise MembenchError(f"sweep takes one folder of records, not {len(folders)}")
    return SweepOptions(Path(folders[0]) if folders else KEPT, **read_options(options, SweepOptions))


def run(options: SweepOptions | CompareOptions) -> int:
    """Print the table, and return the exit code."""
    from membench.sweep.results import comparison
    from membench.sweep.results.listing import ranking, totals
    from membench.sweep.results.tables import read_records, rows

    if isinstance(options, SweepOptions):
        found = read_records(options.folder)
        print_answer(options.output, [*ranking(found), *totals(found)], rows=rows(found))
        return 0
    before, after = read_records(options.before), read_records(options.after)
    made = comparison.compare_records(before, after, tolerance=options.tolerance)
    named = [f"A: {options.before}", f"B: {options.after}"]
    print_answer(options.output, [*named, *comparison.elements(made)], rows=comparison.rows(made))
    return int(not made.is_same)
