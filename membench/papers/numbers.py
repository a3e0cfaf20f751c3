"""A paper's numbers as every page shows them: the paper's value and ours, the verdict and the reason.

They are read from the tables of results; no verdict and no value is computed anew.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from membench.papers.experiment import Answer, Paper, Row
from membench.papers.notes import Reason, split_reason
from membench.papers.printed import format_exact, format_rounded
from membench.papers.row_key import KEY_COLUMNS, Entry, RowKey, key_without_batch_size, match
from membench.papers.scoreboard import Summary, explanations, is_calibrated, summarize
from membench.papers.tables import VALUE_COLUMNS, format_number
from membench.papers.verdicts import Verdict

SHOWN_KEYS = tuple(name for name in KEY_COLUMNS if name != "unit")


@dataclass(frozen=True)
class Number:
    """One number: the paper's value next to ours.

    Attributes:
        row: as in the experiment, with the batch size that was run.
        entry: its line in the tables of results.
        verdict: None for a value of ours that a figure shows and the paper does not print.
        calibrated: the cost model was fitted on it.
    """

    row: Row
    entry: Entry
    reason: Reason
    verdict: Verdict | None = None
    calibrated: bool = False

    @property
    def columns(self) -> dict[str, str]:
        """The key columns and, last, the paper's note on the number."""
        return {**{name: self.entry[name] for name in SHOWN_KEYS}, "note": self.row.note}

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
class PaperNumbers:
    """The numbers that a paper states, in the order of ``reference.csv``."""

    paper: Paper
    stated: tuple[Number, ...]

    @property
    def predicted(self) -> Summary:
        """Counts without the rows on which the cost model was fitted."""
        return summarize(self.verdicts.elements())

    @property
    def fitted(self) -> Summary:
        """Counts of the rows on which the cost model was fitted."""
        return summarize(number.verdict for number in self.stated if number.verdict and number.calibrated)

    @property
    def verdicts(self) -> Counter[Verdict]:
        """The predicted numbers by verdict."""
        return Counter(number.verdict for number in self.stated if number.verdict and not number.calibrated)


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
    found = match(own, table, key_without_batch_size)
    return [table[found[position]] if position in found else None for position in range(len(rows))]


def _number(paper: Paper, row: Row, answer: Answer, entry: Entry | None) -> Number:
    if entry is None:
        verdict = Verdict.INPUT if answer.input else Verdict.NOT_RUN
        text = answer.input or f"not in the results yet: make reproduce-{paper.name}"
        values = {**dict.fromkeys(VALUE_COLUMNS, ""), "paper_value": format_number(row.value)}
        return Number(row, {**RowKey.of(row)._asdict(), **values, "reason": text}, Reason(text, ()), verdict)
    if entry["batch_size"].isdecimal():  # where the paper leaves it open, the one that was run
        row = replace(row, batch_size=int(entry["batch_size"]))
    verdict = Verdict(entry["verdict"])
    reason = split_reason(entry["reason"], explanations(paper, row, verdict))
    return Number(row, entry, reason, verdict, is_calibrated(paper, row, verdict))
