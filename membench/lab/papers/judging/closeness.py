"""How close a paper's numbers are met before verdicts are counted: its orders, and how far values are off."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from membench.core.tables import read_csv
from membench.lab.papers.judging import deviations, rankings
from membench.lab.papers.judging.deviations import NAMES, spread, without_choices
from membench.lab.papers.judging.numbers import PaperNumbers
from membench.lab.papers.judging.rankings import KINDS, Agreement, agreement, is_predicted, margins

Lines = Sequence[Mapping[str, str]]
GLANCE_COLUMNS = (
    "Paper", "Pairs as in the paper", "Kendall's tau", "Methods", "Best method", *(f"{name.capitalize()} off "
    f"by" for name in NAMES[:-1]),
)  # fmt: skip


class Table(NamedTuple):
    """A table of texts."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Closeness:
    """Lines of a paper's ``rankings.csv`` and ``deviations.csv``, or of several papers'."""

    rankings: Lines
    deviations: Lines

    @classmethod
    def of(cls, numbers: PaperNumbers) -> "Closeness":
        """Return the lines that follow from a paper's numbers."""
        return cls(rankings.rankings(numbers), deviations.deviations(numbers))

    @property
    def pairs(self) -> Agreement:
        """Agreement of the pairs of which a number at least is predicted."""
        return agreement(self.predicted("pair"))

    @property
    def pairs_at_papers_largest(self) -> Agreement:
        """Agreement of the same pairs where a quantity at the largest batch is ours at the paper's largest."""
        return agreement({**line, "agree": line["agree_at_papers_largest"]} for line in self.predicted("pair"))

    @property
    def two_counts(self) -> str:
        """The pairs, in brackets at the paper's largest batch: ``"317 of 375 (307 at the paper's largest batch)"``."""
        other = self.pairs_at_papers_largest
        return (
            f"{self.pairs.count} ({other.agree} at the paper's largest batch)"
            if self.has_two_counts
            else self.pairs.count
        )

    @property
    def has_two_counts(self) -> bool:
        """Whether a pair agrees at one of the two largest batches alone."""
        return any(line["agree"] != line["agree_at_papers_largest"] for line in self.predicted("pair"))

    @property
    def bests(self) -> Agreement:
        """Agreement on the best at each point."""
        return agreement(self.predicted("best"))

    @property
    def fitted(self) -> Agreement:
        """Agreement of pairs that are fitted on both sides."""
        return agreement(line for line in self.rankings if line["kind"] == "pair" and line["fitted"] == "true")

    @property
    def held_out(self) -> Agreement:
        """Agreement of pairs of which a fitted rule predicts one number at least, and no other is predicted."""
        return agreement(line for line in self.rankings if line["kind"] == "pair" and line["held_out"] == "true")

    @property
    def order(self) -> Table:
        """The agreement of the predicted pairs by what they compare."""
        rows = []
        for compared in (*KINDS, ""):
            pairs, bests = (agreement(self.predicted(kind, compared)) for kind in ("pair", "best"))
            if pairs.pairs:
                others = pairs.pairs - pairs.agree - pairs.opposite
                counts = (str(count) if count else "" for count in (pairs.opposite, others))
                rows.append((compared or "all", pairs.share, *counts, pairs.rounded_tau, bests.count))
        columns = (
            "Compared",
            "Pairs as in the paper",
            "Opposite",
            "Tie or no value",
            "Kendall's tau",
            "Best as in the paper",
        )
        return Table(columns, rows)

    @property
    def margins(self) -> Table:
        """The agreement of the predicted pairs by how far apart the paper's numbers are."""
        rows: list[tuple[str, ...]] = []
        for name, pairs in margins(self.predicted("pair")).items():
            if pairs.pairs:
                interval = " to ".join(f"{100 * end:.0f}" for end in pairs.interval)
                rows.append((name, pairs.share, f"{interval} %", pairs.reading))
        return Table(("The paper's numbers differ by", "Pairs as in the paper", "95 % interval", ""), rows)

    @property
    def distance(self) -> Table:
        """Median and 90th percentile of the deviations, with and without numbers that rest on a choice."""
        rows = []
        for quantity in NAMES:
            every = spread(self.deviations, quantity)
            without = spread(without_choices(self.deviations), quantity)
            if every[0]:
                rows.append((quantity, *map(str, every), *map(str, without)))
        of_each = "Median", "90th percentile"
        return Table(("Off by", "Numbers", *of_each, "Without choices", *of_each), rows)

    @property
    def others(self) -> Table:
        """The predicted pairs, and bests, that are not as in the paper."""
        lines = (line for line in self.rankings if is_predicted(line) and line["agree"] == "false")
        return Table(("Quantity", "Of", "In the paper", "Here"), [_other_row(line) for line in lines])

    @property
    def glance(self) -> tuple[str, ...]:
        """Columns of `GLANCE_COLUMNS` behind the paper's name: median deviations, 90th percentiles in brackets."""
        methods = agreement(self.predicted("pair", KINDS[0]))
        found = (spread(self.deviations, quantity) for quantity in NAMES[:-1])
        off = (f"{median} ({ninetieth})" if count else "" for count, median, ninetieth in found)
        return self.pairs.share, self.pairs.rounded_tau, methods.share, self.bests.count, *off

    def predicted(self, kind: str, compared: str = "") -> Lines:
        """Return lines of a kind, ``pair`` or ``best``, of which a number at least is predicted."""
        lines = (line for line in self.rankings if is_predicted(line) and line["kind"] == kind)
        return [line for line in lines if not compared or line["compared"] == compared]


def read_closeness(folder: Path) -> Closeness:
    """Read a paper's results; a paper without such files orders nothing.

    Raises:
        MembenchError: ``rankings.csv`` lacks a column.
    """
    tables = {name: folder / f"{name}.csv" for name in ("rankings", "deviations")}
    columns = {"rankings": rankings.COLUMNS, "deviations": ()}
    return Closeness(
        **{name: read_csv(path, columns=columns[name]) if path.exists() else [] for name, path in tables.items()}
    )


def together(papers: Iterable[Closeness]) -> Closeness:
    """Return the lines of all papers."""
    papers = list(papers)
    return Closeness(
        [line for each in papers for line in each.rankings], [line for each in papers for line in each.deviations]
    )


def _other_row(line: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a line states and what comes out here."""
    first, second = (f"{line[place]} ({line[f'paper_{place}']})" for place in ("first", "second"))
    if line["kind"] == "best":
        names = f"best: {first}", f"best: {line['second']} ({line['our_second']})"
    elif line["compared"] == rankings.IN_WORDS:
        names = f"{line['first']}: {line['paper_first']}", line["our_first"]
    else:
        names = (
            f"{first} {line['paper_order']} {second}",
            f"{line['our_first']} {line['our_order'] or 'and'} {line['our_second']}",
        )
    return line["quantity"], ", ".join(filter(None, (line["item"], line["point"]))), *names
