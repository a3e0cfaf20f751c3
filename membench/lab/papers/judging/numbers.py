"""A paper's numbers as every page shows them: the paper's value and ours, the verdict and the reason.

They are read from the tables of results; no verdict and no value is computed anew.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from membench.core.tables import format_number
from membench.core.units import PRINTED_UNITS
from membench.lab.papers.judging.notes import Reason, split_reason
from membench.lab.papers.judging.scoreboard import explanations
from membench.lab.papers.judging.standing import NOT_JUDGED, STANDING_COLUMNS, Standing, read_standing
from membench.lab.papers.judging.tables import VALUE_COLUMNS
from membench.lab.papers.judging.verdicts import AGREES, Verdict
from membench.lab.papers.reading.experiment import Answer, Paper, Row
from membench.lab.papers.reading.printed import format_exact, format_rounded
from membench.lab.papers.reading.row_key import KEY_COLUMNS, Entry, RowKey, key_and_value, match

SHOWN_KEYS = tuple(name for name in KEY_COLUMNS if name != "unit")


@dataclass(frozen=True)
class Number:
    """One number: the paper's value next to ours.

    Attributes:
        row: as in the experiment.
        entry: its line in the tables of results.
        verdict: None for a value of ours that a figure shows and the paper does not print.
        standing: how much an agreement proves.
    """

    row: Row
    entry: Entry
    reason: Reason
    verdict: Verdict | None = None
    standing: Standing = NOT_JUDGED

    @property
    def columns(self) -> dict[str, str]:
        """The key columns, a batch size of ours in words, and, last, the paper's note on the number."""
        keys = {name: self.entry[name] for name in SHOWN_KEYS}
        papers, ours = keys["batch_size"], self.entry.get("our_batch_size")
        if ours and ours != papers:
            keys["batch_size"] = f"{papers} in the paper, {ours} here" if papers else f"{ours} here"
        return {**keys, "note": self.row.note}

    @property
    def values(self) -> dict[str, str]:
        """The paper's, simulated and measured value with their unit, and the deviation."""
        unit, papers = self.entry["unit"], self.entry["paper_value"]
        values = {name: format_rounded(self.entry[name], unit, papers=papers) for name in VALUE_COLUMNS[1:3]}
        values = {"paper_value": format_exact(papers, unit), **values}
        if self.row.oom:
            values["paper_value"] = values["paper_value"] or "out of memory"
        if self.verdict is Verdict.OUT_OF_MEMORY:
            values["simulated_value"] = "out of memory"
        off = self.entry["deviation"]
        return {**values, "deviation": f"{round(float(off), 3) + 0:+.1%}" if off else ""}  # + 0: no -0.0 %


@dataclass(frozen=True)
class Summary:
    """Counts of numbers by verdict; `judged` ones agree or deviate.

    Attributes:
        on_choice: count of those that agree and rest on a declared choice.
        distinct: count of different values among those that agree; what does not fit counts once for each run.
        certain: count of those that agree and cannot fail.
    """

    reproduced: int
    out_of_memory: int
    better: int
    worse: int
    in_kind: int
    not_run: int
    inputs: int
    on_choice: int
    distinct: int
    certain: int

    @property
    def agree(self) -> int:
        return self.reproduced + self.out_of_memory

    @property
    def deviate(self) -> int:
        return self.better + self.worse

    @property
    def judged(self) -> int:
        return self.agree + self.deviate


def summarize(numbers: Iterable[Number]) -> Summary:
    """Count numbers."""
    every = list(numbers)
    agree = [number for number in every if number.verdict in AGREES]
    counts = Counter(number.verdict for number in every)
    return Summary(
        reproduced=counts[Verdict.REPRODUCED],
        out_of_memory=counts[Verdict.OUT_OF_MEMORY],
        better=counts[Verdict.BETTER],
        worse=counts[Verdict.WORSE],
        in_kind=counts[Verdict.IN_KIND],
        not_run=counts[Verdict.NOT_RUN],
        inputs=counts[Verdict.INPUT],
        on_choice=sum(bool(number.standing.choices) for number in agree),
        distinct=len({_value(number) for number in agree}),
        certain=sum(bool(number.standing.cannot_fail) for number in agree),
    )


def _value(number: Number) -> Hashable:
    """Return a number's value in base units, or the run that did not fit."""
    row, entry = number.row, number.entry
    value = entry["simulated_value"] or entry["measured_value"]
    if not value:
        return row.model, row.batch_size, row.system, row.device
    return f"{float(value) * PRINTED_UNITS.get(row.unit, 1):.4g}"


@dataclass(frozen=True)
class PaperNumbers:
    """The numbers that a paper states, in the order of ``reference.csv``."""

    paper: Paper
    stated: tuple[Number, ...]

    @property
    def predicted(self) -> Summary:
        """Counts of predictions, and of what was not judged."""
        return summarize(number for number in self.stated if number.standing.is_predicted)

    @property
    def fitted(self) -> Summary:
        """Counts of the rows on which a constant or a rule was fitted."""
        return summarize(number for number in self.stated if number.standing.fitted)

    @property
    def held_out(self) -> Summary:
        """Counts of the rows that a fitted rule predicts, known when it was written."""
        return summarize(number for number in self.stated if number.standing.held_out)


def stated_numbers(paper: Paper, board: Sequence[Entry]) -> PaperNumbers:
    """Combine the rows that a paper states with the lines of its scoreboard; a row without one was not run."""
    pairs = (pair for experiment in paper.experiments for pair in experiment.rows if pair[0].line)
    stated = sorted(pairs, key=lambda pair: pair[0].line or 0)
    entries = match_entries([row for row, _ in stated], board)
    numbers = (_number(paper, *pair, entry) for pair, entry in zip(stated, entries, strict=True))
    return PaperNumbers(paper, tuple(numbers))


def match_entries(rows: Sequence[Row], table: Sequence[Entry]) -> list[Entry | None]:
    """Return each row's line of a table, or None where there is none."""
    own = [{**RowKey.of(row)._asdict(), "paper_value": format_number(row.value)} for row in rows]
    found = match(own, table, key_and_value)
    return [table[found[position]] if position in found else None for position in range(len(rows))]


def _number(paper: Paper, row: Row, answer: Answer, entry: Entry | None) -> Number:
    if entry is None:
        verdict = Verdict.INPUT if answer.input else Verdict.NOT_RUN
        text = answer.input or f"not in the results yet: make reproduce-{paper.name}"
        empty = dict.fromkeys((*VALUE_COLUMNS, *STANDING_COLUMNS, "our_batch_size"), "")
        values = {**empty, "paper_value": format_number(row.value)}
        return Number(row, {**RowKey.of(row)._asdict(), **values, "reason": text}, Reason(text, ()), verdict)
    verdict = Verdict(entry["verdict"])
    reason = split_reason(entry["reason"], explanations(paper, row, verdict))
    return Number(row, entry, reason, verdict, read_standing(entry))
