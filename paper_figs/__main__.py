"""`python -m paper_figs layrub` draws every figure of a paper anew from results/layrub; without a name, of each paper.

`python -m paper_figs validation` draws those of results/validation and the league's. In any case the overview of all
papers is drawn. A line is printed for each.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SCRIPTS = "*[0-9].py"
VALIDATION = "validation"


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    papers = sorted(path.parent.name for path in RESULTS.glob("*/scoreboard.csv"))
    known = [*papers, *(path.parent.name for path in RESULTS.glob(f"{VALIDATION}/summary.csv"))]
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    if unknown := [word for word in arguments if word not in known]:
        print(f"paper_figs: there is no paper {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    from paper_figs.style import save, summary, use_style  # takes seconds; a wrong argument should not

    use_style()
    for path, draw in figures(arguments or known):
        try:
            figure = draw()
            print(f"{path.relative_to(HERE)}: {summary(figure)}")
            save(figure, path)
        except (OSError, LookupError, ValueError) as error:
            name = path.relative_to(HERE)
            message = f"{name} cannot be drawn ({type(error).__name__}: {error})"
            again = name.parts[0] if len(name.parts) > 1 else "PAPER"
            command = "validate" if again == VALIDATION else f"reproduce-{again}"
            print(f"paper_figs: {message}; run `make {command}` again", file=sys.stderr)
            return 2
    return 0


def figures(papers: Sequence[str]) -> Iterator[tuple[Path, Callable[[], "Figure"]]]:
    """Yield each figure's path without a suffix, and the function that draws it."""
    from paper_figs import league, scatter
    from paper_figs.overview import draw_all, draw_paper

    for paper in papers:
        if paper == VALIDATION:
            for name, dataset, quantity in scatter.pictures(RESULTS):
                yield HERE / VALIDATION / name, partial(scatter.draw, dataset, quantity)
            yield HERE / VALIDATION / league.FOLDER, league.draw
            continue
        for script in sorted((HERE / paper).glob(SCRIPTS)):
            yield script.with_suffix(""), partial(_draw_script, f"paper_figs.{paper}.{script.stem}")
        yield HERE / paper / "overview", partial(draw_paper, paper)
    yield HERE / "overview", draw_all


def _draw_script(module: str) -> "Figure":
    return import_module(module).draw()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
