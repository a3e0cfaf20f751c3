"""Elements are folded between words, in a terminal of any width."""

import ast

import pytest

from membench.core.document import Code, Facts, Table, as_html, as_markdown, as_text, folded

TABLE = Table(
    (
        ("method", "peak", "step time", "effect", "empty"),
        ("joint", "8.4 GB", "826 ms", "copies to the host what the card has not room for", ""),
        ("a | b", "10.8 GB", "1 s", "", ""),
    )
)
FACTS = Facts((("fits", "no, not in 11.6 GB"), ("made up of", "9.8 GB of activations + 3.8 GB of gradients")), 12)
CODE = Code(
    (
        'step = membench.compile(model, criterion, budget="1 GB", strategy="joint", backend="cpu")',
        f"# {' '.join(['comment'] * 30)}",
    )
)


@pytest.mark.parametrize("width", [30, 40, 80, 200, None])
def test_no_line_is_longer_and_no_word_is_broken(width: int | None) -> None:
    elements = ["a headline, of some words and more of them", "", FACTS, TABLE, CODE]
    lines = as_text(elements, width).splitlines()
    whole = as_text(elements).split()
    assert set(" ".join(lines).split()) == set(whole)
    longest = max(map(len, whole))
    assert width is None or all(len(line) <= max(width, longest + 10) for line in lines)
    assert not any(line.endswith(" ") for line in lines)


def test_a_table_that_is_too_wide_continues_below_with_its_keys() -> None:
    lines = as_text([TABLE], 34).splitlines()
    assert lines[0].split() == ["method", "peak", "step", "time"]
    below = lines[lines.index("") + 1 :]
    assert below[0].split() == ["method", "effect"]
    assert below[1].startswith("  joint   copies to the host")
    assert as_text([TABLE]).splitlines()[1].endswith("what the card has not room for")


def test_code_in_folded_lines_is_the_same_program() -> None:
    text = "\n".join(line.removeprefix("    ") for line in as_text([CODE], 40).splitlines())
    assert len(text.splitlines()) > 4
    assert ast.unparse(ast.parse(text)) == ast.unparse(ast.parse(CODE.lines[0]))


def test_a_command_goes_on_behind_a_backslash_and_its_comment_stands_above() -> None:
    command = Code(("membench run model=lenet 'parallel={fsdp: 2}' seed=3  # one cell",), is_shell=True)
    assert as_text([command]) == f"    {command.lines[0]}"
    assert as_text([command], 40).splitlines() == [
        "    # one cell",
        "    membench run model=lenet \\",
        "        'parallel={fsdp: 2}' seed=3",
    ]


def test_styles_are_beside_the_text() -> None:
    painted = as_text(["headline", FACTS, TABLE], 40, paint=True)
    assert "\033[31mno, not in 11.6 GB\033[0m" in painted
    plain = painted
    for style in ("\033[0m", "\033[1m", "\033[31m", "\033[36m"):
        plain = plain.replace(style, "")
    assert [line.rstrip() for line in plain.splitlines()] == as_text(["headline", FACTS, TABLE], 40).splitlines()


def test_markdown_and_html_have_the_same_cells() -> None:
    markdown, html = as_markdown(["a <b>", FACTS, TABLE, CODE]), as_html(["a <b>", FACTS, TABLE, CODE])
    assert "| method | peak | step time | effect |\n| --- | ---: | ---: | --- |" in markdown
    assert "a \\| b" in markdown and "- **fits**: no, not in 11.6 GB" in markdown and "```python" in markdown
    assert "<p>a &lt;b&gt;</p>" in html and "<th>step time</th>" in html and "<td>826 ms</td>" in html
    assert "empty" not in markdown + html


def test_a_text_with_an_indent_hangs() -> None:
    assert folded("  one two three", 10, None) == ["  one two", "    three"]
    assert folded("one two three", 8, None) == ["one two", "three"]
