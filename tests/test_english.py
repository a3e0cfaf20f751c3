"""The English rule of CONTRIBUTING.md, as far as a search can hold it.

No private idiom in source, pages and configurations, and no long sentence in pages.
"""

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
DESCRIBED = [
    path for part in ("membench", "benchmarks", "experiments", "tests") for path in (ROOT / part).rglob("*.py")
]
WITHOUT_NOUN = re.compile(r"^ +[*a-z_][*\w]*(?:, [*a-z_][*\w]*)*: of .*", re.MULTILINE)
"""An argument or attribute whose description is of nothing: "name: of the strategy"."""


def idioms_in(path: Path) -> Iterator[str]:
    """Yield the lines with an idiom; a page may quote one."""
    plain = r"\b[Tt]here (is|are|was|were) no\b" + (r'|"[^"]*"' if path.suffix == ".md" else "")
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if IDIOM.search(re.sub(plain, "", line)):
            yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_prose_is_plain() -> None:
    found = [line for path in FILES for line in idioms_in(path)]
    assert not found, "\n".join(found)


# ---- sentences of pages --------------------------------------------------------------------------

PAGES = sorted(
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/tutorials/*.md")
    for path in ROOT.glob(pattern)
)
MOST_WORDS = 30
CODE_AND_COMMENTS = re.compile(r"<!--.*?-->|^```.*?^```$|^    .*?$", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"``?[^`]+``?")
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^()\s]*\)")
BEGINS = re.compile(r"^(?=\s*[-*] |\s*\d+\. |#|\|)", re.MULTILINE)
"""Where a line begins a part of its own: items of lists, headings, rows of tables."""
END = re.compile(r"(?<=[.:;?!])[)\"*]*\s+")


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences of a page: a cell of a table and an item of a list are at least one each.

    Code in a line counts as a word, blocks of code and the targets of links do not count.
    """
    prose = LINK.sub(r"\1", INLINE_CODE.sub("code", CODE_AND_COMMENTS.sub("\n\n", text)))
    for paragraph in re.split(r"\n\s*\n", BEGINS.sub("\n\n", prose)):
        joined = " ".join(paragraph.split())
        for part in joined.split(" | ") if joined.startswith("|") else [joined]:
            yield from END.split(part)


def word_count(sentence: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in sentence.split())


def test_sentences_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {count} words: {sentence}"
        for path in PAGES
        for sentence in sentences_of(path.read_text())
        if (count := word_count(sentence)) > MOST_WORDS
    ]
    assert not long, "\n".join(long)


def test_sentences_are_told_apart() -> None:
    page = (
        "# A title\n\nOne [two](x.md) `three four`; five.\nSix\n- an item\n\n    code here\n\n| a cell | b |\n"
        "```text\nno\n```\n"
    )
    found = [(sentence.strip("|# "), word_count(sentence)) for sentence in sentences_of(page) if word_count(sentence)]
    assert found == [
        ("A title", 2),
        ("One two code;", 3),
        ("five.", 1),
        ("Six", 1),
        ("- an item", 2),
        ("a cell", 2),
        ("b", 1),
    ]


def test_descriptions_begin_with_a_noun() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line}" for path in DESCRIBED for line in WITHOUT_NOUN.findall(path.read_text())
    ]
    assert not found, "\n".join(found)
