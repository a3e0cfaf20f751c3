"""Pages of the documentation site that are not files of docs/, and links that hold in a checkout and in the site.

A hook of MkDocs, see mkdocs.yml. Nothing is written into docs/: commands, the public interface, the papers' results and
the pages at the top of the repository become pages while the site is built, each from its own definition.
"""

import ast
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from posixpath import dirname, normpath, relpath
from tempfile import TemporaryDirectory
from typing import Any, is_typeddict

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from membench.cli.commands import COMMANDS, described, groups_of, option_lines, overview
from membench.core import configuration
from membench.core.document import Element, Facts, Table, as_markdown
from membench.lab.papers.pages.pages import write_report
from membench.lab.papers.pages.paper_page import Sources
from membench.lab.papers.reading.loader import known_papers

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Sources(results=ROOT / "results", figures=ROOT / "paper_figs", experiments=ROOT / "experiments")
SCOREBOARD = "results/SCOREBOARD.md"
FRONTIERS = "paper_figs/frontiers"
STATIC = ("paper_figs/**/*.png", "results/**/*.png", "results/**/*.csv")
"""Files outside docs/ that pages show or link to."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
PICTURE = re.compile(r'(?<=src="|set=")([^":]+)(?=")')
"""In HTML, whose pictures MkDocs leaves as they are."""


@dataclass(frozen=True)
class Generated:
    """A page that is not a file of docs/.

    Attributes:
        uri: its path in the site, as if it were a file of docs/.
        origin: the path in the repository that its links are relative to.
        stands_for: paths in the repository, a link to which leads to this page.
    """

    uri: str
    origin: str
    text: str
    stands_for: tuple[str, ...] = ()


# ---- what MkDocs calls ------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, the figures and tables, and the papers' reports; put the pages into the navigation."""
    generated_pages.cache_clear()  # `mkdocs serve` builds again when a page has changed
    for page in generated_pages():
        files.append(File.generated(config, page.uri, content=page.text))
    for path in (path for pattern in STATIC for path in ROOT.glob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for name, text in reports().items():
        files.append(File.generated(config, f"report/{name}", content=text))
    listed = set(_names(config.nav))
    config.nav = _expanded(config.nav, sorted(file.src_uri for file in files.documentation_pages()), listed)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page with links that lead to the site's pages, and names of files in place of links to other files."""
    uri = page.file.src_uri
    origin = next((each.origin for each in generated_pages() if each.uri == uri), f"docs/{uri}")
    linked = LINK.sub(lambda link: _link(link, origin, uri, files), markdown)
    return PICTURE.sub(lambda found: relpath(site_uri(_of_repository(found[1], origin)), dirname(uri) or "."), linked)


def _of_repository(path: str, origin: str) -> str:
    """Return the path in the repository of what a page names."""
    return normpath(f"{dirname(origin)}/{path}".lstrip("/"))


def _link(link: re.Match[str], origin: str, uri: str, files: Files) -> str:
    picture, text, target = link.groups()
    path, mark, anchor = target.partition("#")
    if not path or ":" in path:
        return link[0]
    of_repository = _of_repository(path, origin)
    linked = site_uri(of_repository)
    if files.get_file_from_path(linked):
        return f"{picture}[{text}]({relpath(linked, dirname(uri) or '.')}{mark}{anchor})"
    if not (ROOT / of_repository).exists():
        return link[0]  # MkDocs reports it
    name = f"`{of_repository}`"
    return name if text.strip("`") == of_repository else f"{text} ({name})"


def site_uri(path: str) -> str:
    """Return where a path of the repository lies in the site, if it is part of it."""
    found = next((page.uri for page in generated_pages() if path in page.stands_for), path)
    return found.removeprefix("docs/")


def _names(nav: Any) -> Iterator[str]:
    """Yield the names of pages, with or without stars, in the navigation."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        yield from (name for part in nav.values() for name in _names(part))
    else:
        yield from (name for part in nav for name in _names(part))


def _expanded(nav: Any, uris: list[str], listed: set[str]) -> Any:
    """Return the navigation with the pages that names with a star match and that it does not list by name."""
    if isinstance(nav, dict):
        return {title: _expanded(part, uris, listed) for title, part in nav.items()}
    if not isinstance(nav, list):
        return nav
    found: list[Any] = []
    for part in nav:
        if isinstance(part, str) and "*" in part:
            found += [uri for uri in uris if fnmatch(uri, part) and uri not in listed]
        else:
            found.append(_expanded(part, uris, listed))
    return sorted(found, key=lambda part: not str(part).endswith("/index.md"))


# ---- pages ------------------------------------------------------------------------------------------


@cache
def generated_pages() -> tuple[Generated, ...]:
    """Return all pages that are not files of docs/."""
    return (
        _copy("README.md", "overview.md"),
        _copy("CONTRIBUTING.md", "contributing.md"),
        _copy("CHANGELOG.md", "changelog.md"),
        *(_copy(f"results/{name}/README.md", f"results/{name}.md") for name in _folders_with("README.md")),
        _frontiers(),
        _decisions(),
        *(_program(path) for path in sorted((ROOT / "docs" / "examples").glob("*.py"))),
        _scoreboard(),
        *(_paper(name) for name in _folders_with("summary.md")),
        *(_pictures(name) for name in _folders_with("summary.md")),
        *_python(),
        Generated("reference/commands/index.md", "", f"# Commands\n\n{as_markdown(overview())}\n"),
        *(Generated(f"reference/commands/{name}.md", "", command_page(name)) for name in COMMANDS),
    )


def _folders_with(name: str) -> list[str]:
    return [path.parent.name for path in sorted((ROOT / "results").glob(f"*/{name}"))]


def _copy(path: str, uri: str) -> Generated:
    return Generated(uri, path, (ROOT / path).read_text(), (path,))


def _program(path: Path) -> Generated:
    """Return the page of a program of docs/examples: its docstring, then its text."""
    source, name = path.read_text(), path.relative_to(ROOT).as_posix()
    title = path.stem.replace("_", " ").capitalize()
    described = ast.get_docstring(ast.parse(source)) or ""
    program = source.partition('"""\n')[2].strip()
    text = f"# {title}\n\n{described}\n\n    .venv/bin/python {name}\n\n```python\n{program}\n```\n"
    return Generated(name.removeprefix("docs/").replace(".py", ".md"), name, text, (name,))


def _frontiers() -> Generated:
    """Return the page of all frontiers' pictures, each with its table."""
    names = [path.stem for path in sorted((ROOT / FRONTIERS).glob("*.png"))]
    shown = "\n\n".join(
        f"## {name}\n\n![Peak memory against step time of {name}](frontiers/{name}.png)\n\n"
        f"[All points](../results/frontiers/{name}.csv)"
        for name in names
    )
    heading = "# Frontiers\n\nThe pictures and tables of `make frontiers`; [how to read them](../docs/frontier.md)."
    text = f"{heading}\n\n{shown}\n"
    return Generated("results/frontiers.md", "paper_figs/README.md", text, (FRONTIERS, "results/frontiers"))


def _decisions() -> Generated:
    paths = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    lines = "\n".join(f"- [{_title(path)}]({path.name})" for path in paths)
    return Generated("decisions/index.md", "docs/decisions/index.md", f"# Decisions\n\n{lines}\n", ("docs/decisions",))


def _title(path: Path) -> str:
    return path.read_text().partition("\n")[0].removeprefix("# ")


# ---- papers -----------------------------------------------------------------------------------------


def _scoreboard() -> Generated:
    """Return the scoreboard without its parts on each paper, which are pages of their own."""
    text = (ROOT / SCOREBOARD).read_text()
    for name in _folders_with("summary.md"):
        text = text.replace((SOURCES.results / name / "summary.md").read_text().strip(), "")
        text = re.sub(rf"\]\(#({name}-(?!contradiction-))", rf"]({name}/summary.md#\1", text)
    report = "Every number that a paper states, next to ours: [the report](../report/index.html)."
    text = text.replace("\n", f"\n\n{report}\n", 1)
    return Generated("papers/scoreboard.md", SCOREBOARD, text, (SCOREBOARD,))


def _paper(name: str) -> Generated:
    """Return a paper's page: its overview and its summary."""
    summary = re.sub(r"^##", "#", (SOURCES.results / name / "summary.md").read_text(), flags=re.MULTILINE)
    summary = summary.replace(f"](#{name}-contradiction-", f"](SCOREBOARD.md#{name}-contradiction-")
    title, _, rest = summary.partition("\n")
    report = f"Every number that the paper states, next to ours: [the report](../report/{name}.html)."
    pictures = f"Each picture beside what the paper's figure shows: [pictures](../paper_figs/{name}/README.md)."
    overview_of = f"![Every judged number, ours over the paper's](../paper_figs/{name}/overview.png)"
    name_in_navigation = f"---\ntitle: {title.removeprefix('# ').partition(':')[0]}\n---"
    text = "\n\n".join([name_in_navigation, title, report, pictures, overview_of, rest])
    return Generated(f"papers/{name}.md", SCOREBOARD, f"{text}\n", (f"results/{name}/summary.md",))


def _pictures(name: str) -> Generated:
    """Return the page of a paper's pictures, which `make figures` writes."""
    return _copy(f"paper_figs/{name}/README.md", f"papers/{name}_pictures.md")


def reports() -> dict[str, str]:
    """Return the pages that `membench report` writes, by file name."""
    with TemporaryDirectory() as folder:
        paths = write_report(known_papers(SOURCES.experiments), SOURCES, Path(folder))
        return {path.name: path.read_text() for path in paths}


# ---- reference --------------------------------------------------------------------------------------


def _python() -> Iterator[Generated]:
    """Yield the pages of the public interface: what `membench` and `membench.strategies` export."""
    exported = exports("membench")
    errors = [name for name, module in exported.items() if module == "membench.core.errors"]
    functions = [name for name in exported if name.islower()]
    classes = [name for name in exported if name not in (*errors, *functions)]
    yield _interface("functions", "Functions", "membench", functions)
    yield _interface("options", "Options of compile, predict and advise", "membench.steps.keywords", _keywords())
    yield _interface("classes", "Classes", "membench", classes)
    yield _interface("errors", "Errors", "membench", errors)
    yield _interface(
        "strategies", "The author's kit of strategies", "membench.strategies", exports("membench.strategies")
    )


def _keywords() -> list[str]:
    """Return the names of the classes that declare options."""
    from membench.steps import keywords

    return [name for name, each in vars(keywords).items() if is_typeddict(each)]


def _interface(name: str, title: str, package: str, names: Iterable[str]) -> Generated:
    parts = "\n\n".join(f"::: {package}.{each}" for each in names)
    return Generated(f"reference/python/{name}.md", "", f"# {title}\n\nExported by `{package}`.\n\n{parts}\n")


def exports(package: str) -> dict[str, str]:
    """Return the names in a package's ``__all__`` that it imports, each with the module that defines it, in order."""
    tree = ast.parse((ROOT / package.replace(".", os.sep) / "__init__.py").read_text())
    modules = {
        alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    [names] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return {name: modules[name] for name in names if name in modules}


def command_page(command: str) -> str:
    """Return the page of a sub-command: its help, with groups and options as tables."""
    elements = [_marked(element) for element in described(command)]
    if groups := groups_of(command):
        choices = ((f"`{group}`", ", ".join(f"`{name}`" for name in configuration.names(group))) for group in groups)
        elements += ["## Groups and their choices", Table((("Group", "Choices"), *choices))]
    if COMMANDS[command]:
        rows = (_option_row(line) for line in option_lines(command))
        elements += ["## Options", Table((("Option", "Default", "Meaning"), *rows))]
    return f"# membench {command}\n\n{as_markdown(elements)}\n"


def _option_row(line: str) -> tuple[str, str, str]:
    """Return the cells for a line of a configuration file: ``name: default  # meaning``."""
    setting, _, meaning = line.partition(" # ")
    name, _, default = setting.partition(": ")
    return f"`{name}`", f"`{default.strip()}`", _escaped(meaning)


def _marked(element: Element) -> Element:
    """Return an element of a help for a page: its prose without markup, its options as a table."""
    match element:
        case str():
            return _escaped(element)
        case Facts():
            return Table((("Option", "Meaning"), *((f"`{name}`", _escaped(text)) for name, text in element.pairs)))
    return element


def _escaped(line: str) -> str:
    """Return prose whose stars, brackets and underscores are characters; what is in backticks stays."""
    parts = re.split(r"(``?[^`]+``?)", line.replace("<", "&lt;"))
    return "".join(part if part.startswith("`") else re.sub(r"([*_\[])", r"\\\1", part) for part in parts)
