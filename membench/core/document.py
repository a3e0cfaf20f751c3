"""What is printed, as elements: for a terminal of any width, as Markdown, or as HTML for a notebook.

    paragraphs (text) | Facts: names and values | Table | Code

A terminal's lines are folded between words, never within one. A table that is too wide continues below, with its first
columns again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from textwrap import TextWrapper

INDENT = "  "
_LEAST_COLUMN = 12
"""Characters to which a column of text is narrowed at most; a longer one continues below, as a table does."""
BOLD, FAINT, GREEN, RED, NAME = "1", "2", "32", "31", "36"
"""Styles of a terminal: parameters of ECMA-48's SGR, section 8.3.117."""
_GOOD, _BAD = ("yes", "fits"), ("no,", "no ", "does not fit")


@dataclass(frozen=True)
class Facts:
    """Names and values, each in a line.

    Attributes:
        width: characters of the names' column.
    """

    pairs: tuple[tuple[str, str], ...]
    width: int = 20


@dataclass(frozen=True)
class Table:
    """Rows of cells, the first with the columns' names; columns without a value are left out.

    Attributes:
        keys: number of columns that name a row.
    """

    rows: tuple[tuple[str, ...], ...]
    keys: int = 1

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]]) -> "Table":
        """Return the table of rows whose cells are named by their columns, the first row's."""
        return cls((tuple(rows[0]), *(tuple(row.values()) for row in rows)) if rows else ())

    @property
    def shown(self) -> list[tuple[str, ...]]:
        """The rows without the columns that have no value."""
        kept = [column for column in zip(*self.rows, strict=True) if any(column[1:])]
        return list(zip(*kept, strict=True))


@dataclass(frozen=True)
class Code:
    """Lines of a program in Python, or of a shell; they are folded where it allows that."""

    lines: tuple[str, ...]
    is_shell: bool = False


Element = str | Facts | Table | Code
"""A text is one paragraph, which may begin with spaces; an empty one is an empty line."""


def as_text(elements: Iterable[Element], width: int | None = None, *, paint: bool = False) -> str:
    """Return elements as the lines of a terminal.

    Args:
        width: characters of a line; None: lines of any length.
        paint: with the terminal's styles.
    """
    lines: list[str] = []
    for position, element in enumerate(elements):
        match element:
            case str():
                style = BOLD if position == 0 else ""
                lines += (_painted(line, style, paint=paint) for line in folded(element, width))
            case Facts():
                lines += _fact_lines(element, width, paint=paint)
            case Table():
                lines += _table_lines(element, width, paint=paint)
            case Code():
                fold = _folded_command if element.is_shell else _folded_code
                lines += (line for each in element.lines for line in fold(each, width))
    return "\n".join(lines)


def as_markdown(elements: Iterable[Element]) -> str:
    """Return elements as Markdown in GitHub's form."""
    parts: list[str] = []
    for element in elements:
        match element:
            case str():
                parts.append(element.strip())
            case Facts():
                parts.append("\n".join(f"- **{name}**: {value}" for name, value in element.pairs))
            case Table():
                parts.append(markdown_table(element.shown))
            case Code():
                parts.append("\n".join(["```bash" if element.is_shell else "```python", *element.lines, "```"]))
    return "\n\n".join(filter(None, parts))


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first with the columns' names, as a table of Markdown; those of numbers are right-aligned."""
    if not rows:
        return ""
    head, *others = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    marks = ["---:" if right else "---" for right in _are_numbers(rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *others))


def as_html(elements: Iterable[Element]) -> str:
    """Return elements as a fragment of HTML, without scripts or styles of its own."""
    parts: list[str] = []
    for element in elements:
        match element:
            case str() if element:
                parts.append(f"<p>{escape(element.strip())}</p>")
            case Facts():
                rows = "".join(
                    f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in element.pairs
                )
                parts.append(f"<table>{rows}</table>")
            case Table() if element.shown:
                head, *others = ("".join(f"<{{0}}>{escape(cell)}</{{0}}>" for cell in row) for row in element.shown)
                rows = "".join(f"<tr>{row.format('td')}</tr>" for row in others)
                parts.append(f"<table><thead><tr>{head.format('th')}</tr></thead><tbody>{rows}</tbody></table>")
            case Code():
                parts.append(f"<pre>{escape(chr(10).join(element.lines))}</pre>")
    return "\n".join(parts)


def folded(text: str, width: int | None, behind: str | None = None) -> list[str]:
    """Return a paragraph in lines of at most a width, but for words that are longer.

    Args:
        behind: begins all lines but the first; None: the text's own spaces, if it has some and two more.
    """
    if width is None or len(text) <= width:
        return [text]
    own = text[: len(text) - len(text.lstrip())]
    behind = (own and own + INDENT) if behind is None else behind
    wrapper = TextWrapper(
        max(width, len(behind) + 1), initial_indent=own, subsequent_indent=behind,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return wrapper.wrap(text.lstrip()) or [text]


def _folded_code(line: str, width: int | None) -> list[str]:
    """Return a line of Python in several: a comment as comments, else within brackets and never within a string."""
    spaced = 2 * INDENT + line
    if line.startswith("#"):
        return folded(spaced, width, behind=f"{2 * INDENT}# ")
    return [each.replace("\0", " ") for each in folded(_with_whole_strings(spaced), width, behind=4 * INDENT)]


def _folded_command(line: str, width: int | None) -> list[str]:
    """Return a command in several lines, each but the last with the backslash by which a shell reads on.

    A comment behind it that has no room stands above.
    """
    command, _, comment = line.partition("  # ")
    if comment and width is not None and len(2 * INDENT + line) > width:
        above = folded(f"{2 * INDENT}# {comment}", width, behind=f"{2 * INDENT}# ")
        return [*above, *_folded_command(command.rstrip(), width)]
    whole = _with_whole_strings(2 * INDENT + line)
    *lines, last = folded(whole, width and width - len(" \\"), behind=4 * INDENT)
    return [each.replace("\0", " ") for each in (*(f"{each} \\" for each in lines), last)]


def _with_whole_strings(line: str) -> str:
    """Return a line with NUL in place of the spaces in its strings."""
    found, quote = [], ""
    for character in line:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        found.append("\0" if quote and character == " " else character)
    return "".join(found)


def _fact_lines(facts: Facts, width: int | None, *, paint: bool) -> Iterator[str]:
    behind = " " * (len(INDENT) + facts.width + 1)
    for name, value in facts.pairs:
        column = f"{INDENT}{name:<{facts.width}} "
        if width is not None and len(name) > facts.width and len(column + value) > width:
            yield _painted(column.rstrip(), NAME, paint=paint)
            yield from folded(behind + value, width, behind)
            continue
        for number, line in enumerate(folded(column + value, width, behind)):
            if not paint or number:
                yield line.rstrip()
                continue
            style = GREEN if value.startswith(_GOOD) else RED if value.startswith(_BAD) else ""
            yield _painted(line[: len(column)], NAME, paint=True) + _painted(line[len(column) :], style, paint=True)


def _table_lines(table: Table, width: int | None, *, paint: bool) -> Iterator[str]:
    columns = list(zip(*table.shown, strict=True))
    right = _are_numbers(table.shown)
    wide = [max(map(len, column)) for column in columns]
    for number, part_columns in enumerate(_column_groups(wide, right, min(table.keys, len(columns)), width)):
        if number:
            yield ""
        for row, cells in enumerate(zip(*(columns[position] for position, _ in part_columns), strict=True)):
            wrapped = [folded(cell, size, behind="") for cell, (_, size) in zip(cells, part_columns, strict=True)]
            for parts in zip_longest(*wrapped, fillvalue=""):
                line = INDENT.join(
                    f"{part:{'>' if right[position] else '<'}{size}}"
                    for part, (position, size) in zip(parts, part_columns, strict=True)
                )
                yield _painted((INDENT + line).rstrip(), "" if row else BOLD, paint=paint)


def _column_groups(
    wide: Sequence[int], right: Sequence[bool], keys: int, width: int | None
) -> list[list[tuple[int, int]]]:
    """Return the columns of each part of a table as positions and characters."""
    if width is None:
        return [list(enumerate(wide))]
    room = width - len(INDENT)
    own = [(position, min(wide[position], max(_LEAST_COLUMN, room // 2))) for position in range(keys)]
    taken = sum(size + len(INDENT) for _, size in own)
    parts, left = [list(own)], room - taken
    for position in range(keys, len(wide)):
        size = wide[position] if right[position] else min(wide[position], max(_LEAST_COLUMN, room - taken))
        if size > left and len(parts[-1]) > keys:
            parts.append(list(own))
            left = room - taken
        parts[-1].append((position, size))
        left -= size + len(INDENT)
    return parts


def _are_numbers(rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return for each column whether its cells are numbers, which are aligned at the right."""
    return [not any(cell.strip("`")[:1].isalpha() for cell in column[1:]) for column in zip(*rows, strict=True)]


def _painted(text: str, style: str, *, paint: bool) -> str:
    return f"\033[{style}m{text}\033[0m" if paint and style and text else text
