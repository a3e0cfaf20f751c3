"""The report: a self-contained HTML page for each paper, and an index.

results/*.csv, paper_figs/*.png, experiments/ (titles, remarks) -> pages without scripts and links to other files
"""

from collections.abc import Sequence
from pathlib import Path

from membench.core.errors import MembenchError
from membench.core.files import write_whole
from membench.lab.papers.judging.origins import origin
from membench.lab.papers.pages.paper_page import Sources, data_url, read_page
from membench.lab.papers.pages.rendering import render
from membench.lab.papers.reading.loader import known_papers


def write_report(names: Sequence[str], sources: Sources, directory: Path) -> list[Path]:
    """Write ``<paper>.html`` for each paper and ``index.html``, and return their paths.

    Raises:
        MembenchError: a paper has no results, or they cannot be read.
    """
    pages, texts = [], {}
    for name in names:
        try:
            pages.append(read_page(name, sources))
            texts[name] = render("paper.html", page=pages[-1])
        except (KeyError, ValueError) as error:
            message = f"the results of {name} cannot be read ({error}); run `make reproduce-{name}` again"
            raise MembenchError(message) from error
    measured = sorted(path for path in (sources.results / "measured").glob("*") if path.is_dir())
    devices = [origin(path.name, path, 0) for path in measured]
    without = [name for name in known_papers(sources.experiments) if name not in names]
    overview = data_url(sources.figures / "overview.png")
    index = render("index.html", pages=pages, overview=overview, without=without, devices=devices)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in {"index": index, **texts}.items():
        write_whole(directory / f"{name}.html", text)
    return [directory / f"{name}.html" for name in ("index", *texts)]
