"""The table of what a paper states in two ways."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from membench.lab.papers.judging.contradictions import COLUMNS, anchor_of, contradictions, read_contradictions
from membench.lab.papers.reading.experiment import Remark, Selection
from membench.lab.papers.reading.quantities import Result
from tests.helpers.lab.papers import PAPER, ROW, numbers_of


def test_a_number_stated_in_several_places_is_named_once(result: Callable[..., Result]) -> None:
    rows = [replace(ROW, item=item, line=line) for line, item in enumerate(("Abstract", "Sec 8", "Table 1"), start=2)]
    rows.append(replace(ROW, item="Sec 5", line=5, value=90.0))
    twice = replace(PAPER, contradictions=(Remark(Selection({}), "90 MB in Section 5"),))
    [line] = contradictions(numbers_of(twice, [result(100.0, row=row) for row in rows]))
    assert list(line) == list(COLUMNS)
    assert line["stated"] == "Abstract, Sec 8, Table 1: small, ours, memory: 100 MB; Sec 5: small, ours, memory: 90 MB"
    assert (line["number"], line["contradicted_by"]) == ("1", "90 MB in Section 5")
    assert anchor_of("vdnn", line["number"]) == "vdnn-contradiction-1"


def test_of_many_numbers_the_first_are_named(result: Callable[..., Result]) -> None:
    rows = [replace(ROW, system=f"method {line}", line=line) for line in range(2, 9)]
    paper = replace(PAPER, contradictions=(Remark(Selection({}), "but"),))
    [line] = contradictions(numbers_of(paper, [result(100.0, row=row) for row in rows]))
    assert line["stated"].count("method") == 3
    assert line["stated"].endswith("; and 4 more")


def test_a_paper_without_the_table_has_no_contradiction(tmp_path: Path) -> None:
    assert read_contradictions(tmp_path) == []
