"""Write HTML pages from the results, show the records of a sweep, or compare two sets of either.

    membench report                       every paper's page and the index, into outputs/report/
    membench report layrub to=/tmp/pages  one paper, into another folder
    membench report sweep FOLDER          the records of a folder as a table, by default those of outputs/records
    membench report compare A B           two folders of records, of two commits or two devices; or of results: a
                                          results folder, a paper's folder in it, or a scoreboard.csv
    membench report compare A B tolerance=0.05

For records, output=json, csv or markdown prints the table in another form. `compare` exits with 0 if nothing differs
and with 1 otherwise, as diff does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from membench.cli.words import FLAG, read_options, refuse_flags, split
from membench.core.checks import NOT_NEGATIVE
from membench.core.configuration import ROOT
from membench.core.errors import MembenchError
from membench.core.files import shown
from membench.lab.papers.judging.compare import TOLERANCE, compare, comparison_lines, read_results


@dataclass(frozen=True)
class PageOptions:
    """Which papers' pages to write, all for none, and the folder to write them into."""

    papers: Annotated[tuple[str, ...], FLAG] = ()
    to: Path = Path("outputs") / "report"


@dataclass(frozen=True)
class CompareOptions:
    """Two sets of results, and the relative difference up to which two numbers count as equal."""

    before: Annotated[Path, FLAG]
    after: Annotated[Path, FLAG]
    tolerance: Annotated[float, NOT_NEGATIVE] = TOLERANCE


Options = PageOptions | CompareOptions


def parse(words: Sequence[str]) -> Options:
    """Return the options of the pages, or of the comparison if the first bare word is ``compare``."""
    refuse_flags(words, known=())
    bare, options = split(words)
    if bare[:1] != ["compare"]:
        return PageOptions(tuple(bare), **read_options(options, PageOptions))
    changes = read_options(options, CompareOptions)
    if len(bare) != 3:
        raise MembenchError(f"compare takes two sets of results, not {len(bare) - 1}")
    return CompareOptions(Path(bare[1]), Path(bare[2]), **changes)


def run(options: Options) -> int:
    """Write the pages or print the comparison, and return the exit code."""
    if isinstance(options, CompareOptions):
        before, after = read_results(options.before), read_results(options.after)
        comparison = compare(before, after, tolerance=options.tolerance)
        print(f"A: {options.before}", f"B: {options.after}", *comparison_lines(comparison), sep="\n")
        return int(not comparison.is_same)
    from membench.lab.papers.pages.pages import write_report
    from membench.lab.papers.pages.paper_page import Sources, papers_with_results

    sources = Sources(ROOT / "results", ROOT / "paper_figs", ROOT / "experiments")
    papers = options.papers or papers_with_results(sources)
    if not papers:
        message = (
            f"there are no results in {shown(sources.results.resolve())}; `membench reproduce` makes them in a checkout"
        )
        raise MembenchError(message)
    index, *pages = write_report(papers, sources, options.to)
    names = ", ".join(path.name for path in pages)
    print(f"{index}, with {names}, of the results in {shown(sources.results.resolve())}")
    return 0
