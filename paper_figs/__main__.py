"""`python -m paper_figs layrub` draws every figure of a paper anew from results/layrub; without a name, of each paper."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = "*[0-9].py"


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    papers = sorted(path.name for path in HERE.iterdir() if list(path.glob(SCRIPTS)))
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    if unknown := [word for word in arguments if word not in papers]:
        print(
            f"paper_figs: there is no paper {unknown[0]!r}; there are: {', '.join(papers)}", file=sys.stderr
        )
        return 2
    from paper_figs.style import save, use_style  # takes seconds; a wrong argument should not

    use_style()
    for paper in arguments or papers:
        for script in sorted((HERE / paper).glob(SCRIPTS)):
            try:
                save(import_module(f"paper_figs.{paper}.{script.stem}").draw(), script)
            except (OSError, LookupError, ValueError) as error:
                message = f"{paper}/{script.name} cannot be drawn ({type(error).__name__}: {error})"
                print(f"paper_figs: {message}; run `make reproduce-{paper}` again", file=sys.stderr)
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
