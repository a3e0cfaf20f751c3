"""`SCOREBOARD.md` and its part on each paper, ``<paper>/summary.md``.

A remark that explains several deviations is a numbered note below the first table that cites it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from membench.lab.papers.judging.closeness import GLANCE_COLUMNS, Closeness, together
from membench.lab.papers.judging.contradictions import anchor_of
from membench.lab.papers.judging.notes import number_notes
from membench.lab.papers.judging.numbers import Number, PaperNumbers, summarize
from membench.lab.papers.judging.sensitivity import sensitivity_table
from membench.lab.papers.judging.verdicts import DEVIATES, Verdict
from membench.lab.papers.pages.rendering import render
from membench.lab.papers.reading.experiment import Paper

_COUNTED = (
    "Reproduced", "on a choice", "distinct", "cannot fail", "Better", "Worse", "Fitted", "Held out", "In kind",
    "Not run", "Inputs",
)  # fmt: skip
TOTALS_COLUMNS = ("Paper", *_COUNTED)
_OF_README = (
    "Paper",
    "Pairs as in the paper",
    "Kendall's tau",
    "Methods",
    "Best method",
    "Memory off by",
    "Time off by",
    "Percentage off by",
)
_PROSE = "Prose and captions"


def totals_row(numbers: PaperNumbers) -> dict[str, str]:
    """Return a paper's row of `SCOREBOARD.md`'s first table, by column."""
    return dict(zip(TOTALS_COLUMNS, (numbers.paper.title, *_counts(numbers.stated)), strict=True))


def scoreboard_page(
    papers: Sequence[tuple[Mapping[str, str], Closeness]],
    summaries: Sequence[str],
    contradictions: Sequence[Mapping[str, str]] = (),
) -> str:
    """Return `SCOREBOARD.md`.

    Args:
        papers: each paper's `totals_row`, and how close its numbers are met.
        summaries: the `summary_page` of each paper.
        contradictions: lines of all papers' ``contradictions.csv``.
    """
    rows, glance = [], []
    for paper, closeness in papers:
        name, title = paper["Paper"].partition(":")[0], paper["Paper"].lower()
        anchor = re.sub(r"[^\w -]", "", title).replace(" ", "-")
        rows.append((f"[{name}](#{anchor})", *(paper[column] for column in _COUNTED)))
        glance.append((f"[{name}](#{anchor})", *closeness.glance))
    every = together(closeness for _, closeness in papers)
    return render(
        "scoreboard.md",
        closeness=every,
        glance_columns=GLANCE_COLUMNS,
        glance=[*glance, ("all", *every.glance)],
        columns=TOTALS_COLUMNS,
        rows=rows,
        summaries=summaries,
        contradictions=[(line, anchor_of(line["paper"], line["number"])) for line in contradictions],
    )


def readme_table(papers: Sequence[tuple[Mapping[str, str], Closeness]]) -> list[str]:
    """Return the README's table, part of the first one of `SCOREBOARD.md`: papers that have any of its numbers."""
    shown = [GLANCE_COLUMNS.index(name) for name in _OF_README]
    glance = [(paper["Paper"].partition(":")[0], *closeness.glance) for paper, closeness in papers]
    glance.append(("all", *together(closeness for _, closeness in papers).glance))
    lines = [[cells[place] for place in shown] for cells in (GLANCE_COLUMNS, ("---",) * len(GLANCE_COLUMNS), *glance)]
    return [f"| {' | '.join(cells)} |" for cells in lines if any(cells[1:])]


def summary_page(numbers: PaperNumbers, closeness: Closeness, sensitivity: Sequence[Mapping[str, str]] = ()) -> str:
    """Return a paper's ``summary.md``.

    Args:
        sensitivity: the lines of ``sensitivity.csv``.
    """
    deviating = _by_place(number for number in numbers.stated if number.verdict in DEVIATES)
    citations = {
        place: dict.fromkeys(text for number in of_place for text in number.reason.explanations)
        for place, of_place in deviating.items()
    }
    missing = [number for number in numbers.stated if number.verdict is Verdict.NOT_RUN]
    not_run = Counter(number.entry["reason"] for number in missing).items()
    return render(
        "summary.md",
        numbers=numbers,
        closeness=closeness,
        sensitivity=sensitivity_table(sensitivity),
        columns=("Where", *_COUNTED),
        counts=[(place, *_counts(of_place)) for place, of_place in _by_place(numbers.stated).items()],
        deviating=deviating,
        descriptions=_descriptions(numbers),
        on_choice=Counter(name for number in numbers.stated for name in number.standing.choices),
        notes=number_notes(citations),
        contradictions={
            remark.text: f"contradiction [{count}](#{anchor_of(numbers.paper.name, count)}) of the paper with itself"
            for count, remark in enumerate(numbers.paper.contradictions, start=1)
        },
        in_kind=[number for number in numbers.stated if number.verdict is Verdict.IN_KIND],
        not_run=[(str(n), reason) for reason, n in sorted(not_run, key=lambda pair: (-pair[1], pair[0]))],
    )


def _by_place(numbers: Iterable[Number]) -> dict[str, list[Number]]:
    """Return the numbers of each table, and then those of the text."""
    places = defaultdict(list)
    for number in numbers:
        item = number.row.item
        places[item if item.startswith("Table") else _PROSE].append(number)
    return dict(sorted(places.items(), key=lambda pair: (pair[0] == _PROSE, pair[0])))


def _counts(numbers: Sequence[Number]) -> tuple[str, ...]:
    """Return the counts of `_COUNTED`; empty for zero."""
    predicted = summarize(number for number in numbers if number.standing.is_predicted)
    held_out = summarize(number for number in numbers if number.standing.held_out)
    found = (
        predicted.agree,
        predicted.on_choice,
        predicted.distinct,
        predicted.certain,
        predicted.better,
        predicted.worse,
        sum(number.standing.fitted for number in numbers),
        f"{held_out.agree} of {held_out.judged}" if held_out.judged else "",
        predicted.in_kind,
        predicted.not_run,
        predicted.inputs,
    )
    return tuple(str(count) if count else "" for count in found)


def _descriptions(numbers: PaperNumbers) -> dict[int | None, str]:
    """Describe each number, by its line in ``reference.csv``; equal descriptions are extended by the paper's notes."""
    described = {number.row.line: _describe(numbers.paper, number) for number in numbers.stated}
    uses = Counter(described.values())
    for number in numbers.stated:
        if uses[described[number.row.line]] > 1 and number.row.note:
            described[number.row.line] += f", {number.row.note}"
    return described


def _describe(paper: Paper, number: Number) -> str:
    """Describe a number, without its table and the paper's usual device."""
    row = number.row
    place = "" if row.item.startswith("Table") else row.item
    batch = f"batch {size}" if (size := number.columns["batch_size"]) else ""
    device = "" if row.device == paper.device else row.device
    names = (place, row.model, batch, device, row.system, row.metric.replace("_", " "))
    return ", ".join(filter(None, names))
