"""The page that sums the scoreboard up: every deviation with its verdict and reason, each remark once."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from membench.core.configuration import ROOT
from membench.core.record import Outcome
from membench.lab.papers.judging.closeness import Closeness
from membench.lab.papers.judging.compare import read_results
from membench.lab.papers.judging.contradictions import read_contradictions
from membench.lab.papers.judging.numbers import stated_numbers
from membench.lab.papers.judging.sensitivity import read_sensitivity
from membench.lab.papers.judging.verdicts import DEVIATES
from membench.lab.papers.pages.results import read_papers
from membench.lab.papers.pages.scoreboard_page import (
    TOTALS_COLUMNS,
    readme_table,
    scoreboard_page,
    summary_page,
    totals_row,
)
from membench.lab.papers.reading.experiment import Answer, Paper, Remark, Selection, TrainedQuantity
from membench.lab.papers.reading.loader import load_paper
from membench.lab.papers.reading.quantities import Result
from tests.helpers.lab.papers import PAPER, ROW, numbers_of

RESULTS = ROOT / "results"
NOTHING = Closeness([], [])
FITTED = (Remark(Selection({"model": ("small",)}), "fitted"),)
EVERYWHERE = Remark(Selection({}), "a cause of all")
OF_DEEP = Remark(Selection({"model": ("deep",)}), "a cause of one")


def _deviations(text: str) -> list[list[str]]:
    """Return the cells of every row below "What deviates"."""
    section = text.partition("### What deviates")[2].partition("### What was ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    return [line.strip("| ").split(" | ") for line in lines if not line.startswith("| Number")]


def _page(paper: Paper, results: list[Result]) -> str:
    numbers = numbers_of(paper, results)
    return summary_page(numbers, Closeness.of(numbers))


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/summary.md")), ids=lambda path: path.parent.name)
def test_committed_summaries_follow_from_the_committed_scoreboards(path: Path) -> None:
    board = [
        {
            **line,
            "measured_value": "" if line["simulated_value"] else line["measured_value"],
            "reason": re.sub(r"(; )?measured on \w+$", "", line["reason"]),
        }
        for line in read_results(path.parent)
    ]
    paper = load_paper(ROOT / "experiments" / path.parent.name)
    numbers = stated_numbers(paper, board)
    sensitivity = read_sensitivity(path.parent)
    assert summary_page(numbers, Closeness.of(numbers), sensitivity) == path.read_text()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/summary.md")), ids=lambda path: path.parent.name)
def test_no_part_of_a_deviations_reason_is_lost(path: Path) -> None:
    text = path.read_text()
    notes = dict(re.findall(r'^\d+\. <a id="(.*?)"></a>(.*)$', text, re.MULTILINE))
    listed = {line["number"]: line["contradicted_by"] for line in read_contradictions(path.parent)}
    in_table = {name: re.match(r"contradiction \[(\d+)\]", note) for name, note in notes.items()}
    notes |= {name: listed[found[1]] for name, found in in_table.items() if found}

    def in_full(why: str) -> str:
        own, *numbers = re.split(r"(?:; |, |^)\[\d+\]\(#(.*?)\)", why)
        return "; ".join(filter(None, (own, *(notes[name] for name in numbers if name))))

    board = [row for row in read_results(path.parent) if row["verdict"] in DEVIATES]
    shown = [(cells[3], in_full(cells[4])) for cells in _deviations(text)]
    reasons = (re.sub(r"(; )?measured on \w+$", "", row["reason"]) for row in board)
    assert sorted(shown) == sorted(zip((row["verdict"] for row in board), reasons, strict=True))


def test_a_remark_stands_once_and_every_row_that_it_explains_refers_to_it(result: Callable[..., Result]) -> None:
    rows = [
        replace(ROW, line=2),
        replace(ROW, model="deep", line=3),
        replace(ROW, item="Sec 1", line=4),
        replace(ROW, item="Sec 2", device="another card", line=5),
    ]
    paper = replace(PAPER, causes=(EVERYWHERE, OF_DEEP))
    text = _page(paper, [result(150.0, row=row) for row in rows])
    every, deep = "[1](#paper-1)", "[2](#paper-2)"
    assert _deviations(text) == [
        ["small, batch 8, ours, memory", "100 MB", "150 MB", "worse", every],
        ["deep, batch 8, ours, memory", "100 MB", "150 MB", "worse", f"{every}, {deep}"],
        ["Sec 1, small, batch 8, ours, memory", "100 MB", "150 MB", "worse", every],
        ["Sec 2, small, batch 8, another card, ours, memory", "100 MB", "150 MB", "worse", every],
    ]
    assert re.findall(r'^(\d)\. <a id="(.*)"></a>(.*)$', text, re.MULTILINE) == [
        ("1", "paper-1", "a cause of all"),
        ("2", "paper-2", "a cause of one"),
    ]


def test_what_a_row_alone_has_as_its_reason_stands_in_it(result: Callable[..., Result]) -> None:
    row = replace(ROW, oom=True, value=None)
    causes = replace(PAPER, causes=(EVERYWHERE,))
    for paper, why in ((PAPER, ""), (causes, "; [1](#paper-1)")):
        [cells] = _deviations(_page(paper, [result(50.0, row=row)]))
        reason = "out of memory in the paper; fits here"
        assert cells[1:] == ["out of memory", "50 MB", "better", f"{reason}{why}"]
    [cells] = _deviations(_page(PAPER, [result(150.0)]))
    assert cells[-1] == "no cause found yet"


def test_rows_with_equal_names_take_the_note_of_the_paper(result: Callable[..., Result]) -> None:
    met, *rows = (replace(ROW, line=line, note=f"layer {line}") for line in (2, 3, 4))
    alone = replace(ROW, line=5, model="deep", note="layer 5")
    results = [result(100.0, row=met), *(result(150.0, row=row) for row in (*rows, alone))]
    text = _page(PAPER, results)
    assert [cells[0].partition("memory")[2] for cells in _deviations(text)] == [", layer 3", ", layer 4", ""]


def test_what_was_measured_in_kind_is_listed_and_counted_apart() -> None:
    trained = Answer(Selection({}), trained=TrainedQuantity("net", "accuracy"), direction_only="other images")
    text = _page(PAPER, [Result(ROW, trained, 80.0, Outcome.OK, "95 % interval 79 to 81, 4 seeds")])
    why = "80 MB here; 95 % interval 79 to 81, 4 seeds; other images"
    assert f"| small, batch 8, ours, memory | 100 MB | 80 MB | {why} |" in text
    assert "**0 of 0 predicted numbers reproduced**, 0 deviate; 1 measured in kind; 0 not run" in text


def test_rows_that_the_model_was_fitted_on_are_counted_apart(results: list[Result]) -> None:
    paper = replace(PAPER, fitted=FITTED)
    text = _page(paper, results)
    assert "**0 of 1 predicted numbers reproduced**, 1 deviate; 1 not run" in text


def test_the_overview_counts_each_number_once_and_links_to_the_paper(results: list[Result]) -> None:
    paper = replace(PAPER, title="vDNN: (virtual) memory-efficient networks", fitted=FITTED)
    line = totals_row(numbers_of(paper, results))
    assert list(line) == list(TOTALS_COLUMNS)
    text = scoreboard_page([(line, NOTHING), ({**line, "Paper": "EPMC"}, NOTHING)], ["## A paper\n"])
    assert "| [vDNN](#vdnn-virtual-memory-efficient-networks) |  |  |  |  |  | 1 | 1 |  |  | 1 |  |" in text
    assert "| [EPMC](#epmc) |" in text
    assert text.endswith("\n\n## A paper\n")


def test_hostile_names_stay_text_in_their_cells(result: Callable[..., Result]) -> None:
    hostile = "<script>alert(1)</script>|\n# a `b` $(c)"
    row = replace(ROW, model=hostile, item=f"Table {hostile}", note=hostile)
    paper = replace(PAPER, name=hostile, title=hostile, device=hostile, causes=(Remark(Selection({}), hostile),))
    text = _page(paper, [result(150.0, row=row)])
    [cells] = _deviations(text)
    assert len(cells) == 5
    assert "<script" not in text and "\n# a" not in text
    board = scoreboard_page([(totals_row(numbers_of(paper, [result(150.0)])), NOTHING)], [text])
    assert "<script" not in board and "\n# a" not in board


def test_the_readme_has_the_first_table_of_the_scoreboard() -> None:
    lines = readme_table(read_papers(RESULTS))
    assert "\n".join(lines) in (ROOT / "README.md").read_text()
