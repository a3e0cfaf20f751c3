"""`python -m paper_figs layrub` draws every figure of a paper anew from results/layrub; without a name, of each paper.

`python -m paper_figs validation` draws those of results/validation and the league's. In any case the overview of all
papers and the picture of the site's home are drawn. A line is printed for each; a paper's page of pictures, its
README.md, is written.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from paper_figs.pages import Drawn

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
    from paper_figs.pages import drawn  # takes seconds; a wrong argument should not
    from paper_figs.style import save, summary, use_style

    use_style()
    shown: dict[str, dict[str, Drawn]] = {}
    for path, draw in figures(arguments or known):
        try:
            figure = draw()
            print(f"{path.relative_to(HERE)}: {summary(figure)}")
            if path.parent != HERE and path.with_suffix(".py").is_file():  # a script of a paper
                shown.setdefault(path.parent.name, {})[path.name] = drawn(figure)
            save(figure, path)
        except (OSError, LookupError, ValueError) as error:
            name = path.relative_to(HERE)
            message = f"{name} cannot be drawn ({type(error).__name__}: {error})"
            again = name.parts[0] if len(name.parts) > 1 else "PAPER"
            command = "validate" if again == VALIDATION else f"reproduce-{again}"
            print(f"paper_figs: {message}; run `make {command}` again", file=sys.stderr)
            return 2
    return max((_write_page(paper, pictures) for paper, pictures in shown.items()), default=0)


def _write_page(paper: str, pictures: dict[str, "Drawn"]) -> int:
    """Write a paper's page of pictures; return the exit code."""
    from paper_figs.overview import paper_title
    from paper_figs.pages import FILE, PAGE, page

    try:
        text = page(paper, paper_title(paper), pictures)
    except (OSError, LookupError) as error:
        problem = f"paper_figs: {paper}/{FILE} does not describe every picture ({type(error).__name__}: {error})"
        print(f"{problem}; see docs/experiment.md", file=sys.stderr)
        return 2
    (HERE / paper / PAGE).write_text(text)
    return 0


def figures(papers: Sequence[str]) -> Iterator[tuple[Path, Callable[[], "Figure"]]]:
    """Yield each figure's path without a suffix, and the function that draws it."""
    from paper_figs import home, league, scatter
    from paper_figs.overview import draw_all, draw_paper

    for paper in papers:
        if paper == VALIDATION:
            for name, dataset, quantity in scatter.pictures(RESULTS):
                yield HERE / VALIDATION / name, partial(scatter.draw, dataset, quantity)
            yield HERE / VALIDATION / league.FOLDER, league.draw
            continue
        for script in sorted((HERE / paper).glob(SCRIPTS), key=_order):
            yield script.with_suffix(""), partial(_draw_script, f"paper_figs.{paper}.{script.stem}")
        yield HERE / paper / "overview", partial(draw_paper, paper)
    yield HERE / "overview", draw_all
    for scheme in home.COLORS:
        yield HERE / f"home_{scheme}", partial(home.draw, scheme)


def _order(script: Path) -> tuple[str, int]:
    """Return a sorting key: figures, then tables, each by number."""
    word = script.stem.rstrip("0123456789")
    return word, int(script.stem.removeprefix(word))


def _draw_script(module: str) -> "Figure":
    return import_module(module).draw()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
