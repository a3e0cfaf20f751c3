"""The documentation as data: its blocks of code with the file that each is, its commands and its links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
}


@dataclass(frozen=True)
class Code:
    """A fenced block.

    Attributes:
        file: the path in backticks that the line before the block ends or begins with; empty where there is none.
    """

    language: str
    file: str
    text: str


def code_of(page: str) -> list[Code]:
    """Return the fenced blocks of a page."""
    pattern = r"(?:`([\w/.]+)`[^`\n]*:\n\n)?```(\w+)\n(.*?)```"
    text = PAGES[page].read_text()
    return [Code(language, file, body) for file, language, body in re.findall(pattern, text, re.DOTALL)]


def commands_of(page: str) -> list[str]:
    """Return the lines of indented blocks that are commands, without their comments."""
    lines = [line.strip() for line in PAGES[page].read_text().splitlines() if line.startswith("    ")]
    return [
        re.sub(r"\s+#.*", "", line) for line in lines if re.match(r"make |(\.venv/bin/)?(python -m |membench )", line)
    ]


def mentioned_files(page: str) -> list[str]:
    """Return the project's files and folders that a page names or links to; what a run makes is not among them."""
    text = re.sub(r"```.*?```", "", PAGES[page].read_text(), flags=re.DOTALL)
    named = re.findall(r"`((?:membench|conf|experiments|paper_figs|results|tests|docs|benchmarks)/[\w/.]*)`", text)
    links = [link for link, _ in links_of(page)]
    return [*named, *((PAGES[page].parent / link).resolve().relative_to(ROOT).as_posix() for link in links)]


def links_of(page: str) -> list[tuple[str, str]]:
    """Return the relative links of a page: the path, empty within the page itself, and the anchor, if any."""
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", PAGES[page].read_text())
    return [(path, anchor) for path, anchor in links if "://" not in path]


def anchors_of(page: str) -> set[str]:
    """Return the anchors of a page's headings, as Git hosts form them."""
    headings = re.findall(r"^#+ (.+)$", PAGES[page].read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
