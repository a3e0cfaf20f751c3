"""The English rule of CONTRIBUTING.md, as far as a search can hold it: no private idiom in source, pages and configurations."""

import re
from collections.abc import Iterator
from pathlib import Path

import membench

ROOT = Path(membench.__file__).parent.parent
FILES = sorted(
    path
    for pattern in ("membench/**/*.py", "membench/**/*.md", "*.md", "docs/**/*.md", "conf/**/*.yaml")
    for path in ROOT.glob(pattern)
)
IDIOM = re.compile(
    r"\b(nobody|whoever|likewise|in vain|(is|are|was|were) no(?! (longer|more|fewer|less|later|earlier))"
    r"|(step|strategy|method|model|cell|schedule|graph|file|page|record|device) (knows|wants|says|tells))\b",
    re.IGNORECASE,
)
"""Personified subjects, "X is no Y", and words with a plainer form. "There is no Y" is plain."""


def idioms_in(path: Path) -> Iterator[str]:
    """Yield the lines with an idiom; a page may quote one."""
    plain = r"\b[Tt]here (is|are|was|were) no\b" + (r'|"[^"]*"' if path.suffix == ".md" else "")
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if IDIOM.search(re.sub(plain, "", line)):
            yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_prose_is_plain() -> None:
    found = [line for path in FILES for line in idioms_in(path)]
    assert not found, "\n".join(found)
