"""The English rule of CONTRIBUTING.md, as far as a search can hold it: no private idiom in source, pages and configurations."""

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_plain(path: Path) -> None:
    lines = enumerate(path.read_text().splitlines(), start=1)
    plain = r"\b[Tt]here (is|are|was|were) no\b" + (
        r'|"[^"]*"' if path.suffix == ".md" else ""
    )  # a page quotes the rule
    text = [(number, re.sub(plain, "", line)) for number, line in lines]
    found = [f"{path.name}:{number}: {line.strip()}" for number, line in text if IDIOM.search(line)]
    assert not found, "\n".join(found)
