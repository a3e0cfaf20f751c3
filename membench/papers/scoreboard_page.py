"""`SCOREBOARD.md`: how many of the papers' numbers come out, and each that does not, with the reason.

A remark that explains several numbers stands once, as a numbered note below the first table that refers to it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from membench.papers.experiment import Paper, Row
from membench.papers.printed import in_full, rounded
from membench.papers.scoreboard import AGREES, DEVIATES, Score, summarize
from membench.papers.tables import value_columns
from membench.papers.verdicts import Verdict

_COUNTED = ("Reproduced", "Better", "Worse", "Fitted", "Not run", "Inputs")
TOTALS_COLUMNS = ("Paper", *_COUNTED)
_PROSE = "Prose and captions"


def totals(paper: Paper, scores: Sequence[Score]) -> dict[str, str]:
    """Return a paper's line of `overview`."""
    return {"Paper": paper.title, **dict(zip(_COUNTED, _counts(scores), strict=True))}


_LEGEND = (
    "Of the numbers that a paper prints: within 10 % of it, or out of memory as there; beyond that, in the direction that a "
    "user would or would not like; those on which the model was fitted, which prove nothing; not run; and those that the "
    "experiments start from."
)


def overview(papers: Iterable[Mapping[str, str]]) -> str:
    """Return `SCOREBOARD.md`'s first table: how many numbers of each paper came out how.

    Args:
        papers: the `totals` of each.
    """
    rows = []
    for paper in papers:
        name, title = paper["Paper"].partition(":")[0], paper["Paper"].lower()
        anchor = re.sub(r"[^\w -]", "", title).replace(" ", "-")
        rows.append((f"[{name}](#{anchor})", *(paper[column] for column in _COUNTED)))
    return "\n".join(["# Scoreboard", "", *_markdown_table(TOTALS_COLUMNS, rows), "", _LEGEND, ""])


def page(paper: Paper, scores: Sequence[Score]) -> str:
    """Return `SCOREBOARD.md`'s section on one paper."""
    predicted = summarize(entry.verdict for entry in scores if not entry.calibrated)
    fitted = summarize(entry.verdict for entry in scores if entry.calibrated)
    of_fit = (
        f"Another {fitted.judged} rows are those on which the model was fitted "
        f"({fitted.agree} within 10 %): they are listed, and prove nothing. "
    ) * bool(fitted.judged)
    of_values = (
        "Values are simulated on the paper's devices; accuracies come from trainings of a small network, and only their direction is judged."
        if paper.trainings
        else "All values are simulated on the paper's devices."
    )
    lines = [
        f"## {paper.title}",
        "",
        f"**{predicted.agree} of {predicted.judged} predicted numbers reproduced**, {predicted.deviate} deviate; "
        f"{predicted.not_run} not run; {predicted.inputs} inputs of the experiments, not judged.",
        "",
        f"{of_fit}{of_values} A row counts as reproduced within 10 % of the paper's number, or where it runs out of memory "
        f"as in the paper; each row with its reason and all digits: [scoreboard.csv]({paper.name}/scoreboard.csv).",
        "",
        *_markdown_table(
            ("Where", *_COUNTED), ((place, *_counts(of)) for place, of in _by_place(scores).items())
        ),
        "",
        "### What deviates",
        "",
        *_deviations(paper, scores),
        "### What was not run",
        "",
        *_not_run(scores),
        "",
    ]
    return "\n".join(lines)


def _by_place(scores: Iterable[Score]) -> dict[str, list[Score]]:
    """Return the rows of each table, and then those of the text."""
    places = defaultdict(list)
    for entry in scores:
        item = entry.result.row.item
        places[item if item.startswith("Table") else _PROSE].append(entry)
    return dict(sorted(places.items(), key=lambda pair: (pair[0] == _PROSE, pair[0])))


def _counts(scores: Sequence[Score]) -> tuple[str, ...]:
    """Return what `_COUNTED` names; nothing where there is none."""
    counts = Counter(entry.verdict for entry in scores if not entry.calibrated)
    numbers = (
        sum(counts[v] for v in AGREES),
        counts[Verdict.BETTER],
        counts[Verdict.WORSE],
        sum(entry.calibrated for entry in scores),
        counts[Verdict.NOT_RUN],
        counts[Verdict.INPUT],
    )
    return tuple(str(number) if number else "" for number in numbers)


def _deviations(paper: Paper, scores: Sequence[Score]) -> list[str]:
    """Return a table for each place, and below it the notes that no earlier one refers to."""
    deviating = _by_place(entry for entry in scores if entry.verdict in DEVIATES)
    if not deviating:
        return ["Nothing.", ""]
    lines = [
        f"On {paper.device} where no other device is named. Numbers in the last column are those of the notes, each of which "
        "stands below the first table that refers to it.",
        "",
    ]
    called = Counter(_describe(paper, entry.result.row) for entry in scores)
    notes: dict[str, int] = {}
    for place, entries in deviating.items():
        known = len(notes)
        for remark in (remark for entry in entries for remark in entry.remarks):
            notes.setdefault(remark, len(notes) + 1)
        rows = [_deviation(paper, entry, called, notes) for entry in entries]
        lines += [f"#### {place}", ""]
        lines += [*_markdown_table(("Number", "Paper", "Ours", "Verdict", "Why"), rows), ""]
        new = list(notes.items())[known:]
        lines += [f'{number}. <a id="{_anchor(paper, number)}"></a>{remark}' for remark, number in new]
        lines += [""] * bool(new)
    return lines


def _deviation(
    paper: Paper, entry: Score, called: Mapping[str, int], notes: Mapping[str, int]
) -> tuple[str, ...]:
    """Return a line of the table.

    Args:
        called: how many rows have the same description; the paper's own note then tells them apart.
        notes: the number of each remark.
    """
    row, values = entry.result.row, value_columns(entry.result, None)
    name = _describe(paper, row)
    ours = values["simulated_value"] or values["measured_value"]
    numbers = [f"[{notes[remark]}](#{_anchor(paper, notes[remark])})" for remark in entry.remarks]
    return (
        f"{name}, {row.note}" if called[name] > 1 and row.note else name,
        in_full(values["paper_value"], row.unit) or "out of memory",
        rounded(ours, row.unit, papers=values["paper_value"]) or "out of memory",
        str(entry.verdict),
        "; ".join(filter(None, (entry.judgement.reason, ", ".join(numbers)))) or "no cause found yet",
    )


def _anchor(paper: Paper, note: int) -> str:
    return f"{paper.name}-{note}"


def _describe(paper: Paper, row: Row) -> str:
    """Return what a number is of; a table's name stands above it."""
    place = "" if row.item.startswith("Table") else row.item
    batch = f"batch {row.batch_size}" if row.batch_size else ""
    device = "" if row.device == paper.device else row.device
    return ", ".join(
        filter(None, (place, row.model, batch, device, row.system, row.metric.replace("_", " ")))
    )


def _not_run(scores: Sequence[Score]) -> list[str]:
    reasons = Counter(entry.reason for entry in scores if entry.verdict is Verdict.NOT_RUN)
    rows = [
        (str(count), reason)
        for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return _markdown_table(("Rows", "Reason"), rows) if rows else ["Nothing."]


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
