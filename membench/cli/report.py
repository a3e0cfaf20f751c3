"""`python -m membench.cli.report`: pages from the results that there are, or what differs between two sets of them.

    python -m membench.cli.report                      every paper's page and the index, into outputs/report/
    python -m membench.cli.report layrub to=/tmp/pages one paper, elsewhere
    python -m membench.cli.report compare A B          A and B: a results folder, a paper's folder in it, or a scoreboard.csv
    python -m membench.cli.report compare A B tolerance=0.05

`compare` exits with 0 where nothing differs and with 1 where something does, as diff.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from membench.core.checks import NOT_NEGATIVE, number
from membench.core.configuration import ROOT
from membench.core.errors import MembenchError
from membench.core.files import complaint
from membench.papers.compare import TOLERANCE, compare, comparison_lines, read_results


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        return _compare(arguments[1:]) if arguments[:1] == ["compare"] else _write(arguments)
    except (MembenchError, OSError) as error:
        print(f"membench.report: {complaint(error)}", file=sys.stderr)
        return 2


def _compare(arguments: Sequence[str]) -> int:
    paths, options = _parse(arguments, {"tolerance": str(TOLERANCE)})
    if len(paths) != 2:
        raise MembenchError(f"compare takes two sets of results, not {len(paths)}")
    tolerance = number(options["tolerance"])
    if not NOT_NEGATIVE.holds(tolerance):
        raise MembenchError(f"tolerance is a fraction such as 0.05, not {options['tolerance']!r}")
    before, after = (read_results(Path(path)) for path in paths)
    comparison = compare(before, after, tolerance=tolerance)
    print("\n".join([f"A: {paths[0]}", f"B: {paths[1]}", *comparison_lines(comparison)]))
    return 0 if comparison.is_same else 1


def _write(arguments: Sequence[str]) -> int:
    from membench.papers.pages import write_report
    from membench.papers.paper_page import Sources, papers_with_results

    names, options = _parse(arguments, {"to": str(Path("outputs") / "report")})
    sources = Sources(ROOT / "results", ROOT / "paper_figs", ROOT / "experiments")
    for path in write_report(names or papers_with_results(sources), sources, Path(options["to"])):
        print(path)
    return 0


def _parse(arguments: Sequence[str], options: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the bare words, and the options with what ``name=value`` words change in them."""
    words = []
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if not separator:
            words.append(argument)
        elif name not in options:
            raise MembenchError(f"{name!r} is not an option; there are: {', '.join(options)}")
        else:
            options = {**options, name: value}
    return words, options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
