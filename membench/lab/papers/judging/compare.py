"""Comparison of two sets of results: changed verdicts, changed values, and rows that only one of them has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from membench.core.errors import MembenchError
from membench.core.tables import read_csv
from membench.lab.papers.judging.standing import STANDING_COLUMNS
from membench.lab.papers.judging.tables import VALUE_COLUMNS
from membench.lab.papers.reading.row_key import KEY_COLUMNS, Entry, full_key, key_and_value, match

TOLERANCE = 0.01
"""The largest change of a value, as a fraction, that counts as none."""


@dataclass(frozen=True)
class Change:
    """One row that differs between two sets of results, with the differences as text."""

    before: Entry
    after: Entry
    differences: tuple[str, ...]
    changed_verdict: bool


@dataclass(frozen=True)
class Comparison:
    """The differences between two sets of results.

    Attributes:
        compared: count of the rows that both have.
        verdicts: rows whose verdict changed; their changed values are included.
        values: rows whose value changed and verdict did not.
    """

    compared: int
    verdicts: tuple[Change, ...]
    values: tuple[Change, ...]
    only_before: tuple[Entry, ...]
    only_after: tuple[Entry, ...]

    @property
    def is_same(self) -> bool:
        return not (self.verdicts or self.values or self.only_before or self.only_after)


def read_results(path: Path) -> list[Entry]:
    """Return the rows of a scoreboard, of a paper's folder, or of all papers of a results folder.

    Raises:
        MembenchError: there is no scoreboard, or a row of it lacks a column or has text in place of a number.
    """
    board = path if path.is_file() else path / "scoreboard.csv"
    files = [board] if board.exists() else sorted(path.glob("*/scoreboard.csv"))
    if not files:
        raise MembenchError(
            f"there is no scoreboard at {path}; name a scoreboard.csv, a paper's results or a folder of them"
        )
    rows: list[Entry] = []
    for file in files:
        read = read_csv(
            file,
            columns=(*KEY_COLUMNS, "our_batch_size", *VALUE_COLUMNS, "verdict", *STANDING_COLUMNS),
            numbers=VALUE_COLUMNS,
        )
        if not read:
            raise MembenchError(f"{file} is not a scoreboard: it has no rows")
        rows += ({"paper": file.parent.name if len(files) > 1 else "", **row} for row in read)
    return rows


def compare(before: Sequence[Entry], after: Sequence[Entry], *, tolerance: float = TOLERANCE) -> Comparison:
    """Compare rows of equal keys, those with the same value of the paper first.

    Args:
        tolerance: as a fraction of the value before.
    """
    found = match(before, after, key_and_value, full_key)
    pairs = [(before[position], after[other]) for position, other in found.items()]
    matched = set(found.values())
    changes = [change for pair in pairs if (change := _change(*pair, tolerance)).differences]
    return Comparison(
        compared=len(found),
        verdicts=tuple(change for change in changes if change.changed_verdict),
        values=tuple(change for change in changes if not change.changed_verdict),
        only_before=tuple(entry for position, entry in enumerate(before) if position not in found),
        only_after=tuple(entry for position, entry in enumerate(after) if position not in matched),
    )


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yield lines for a terminal: each kind of difference under its heading, then the counts."""
    for heading, changes in (("verdict changed", comparison.verdicts), ("value changed", comparison.values)):
        if changes:
            yield f"{heading}: {len(changes)}"
        for change in changes:
            yield f"  {_describe(change.after)}"
            yield from (f"      {difference}" for difference in change.differences)
    for heading, rows in (("only in A", comparison.only_before), ("only in B", comparison.only_after)):
        if rows:
            yield f"{heading}: {len(rows)}"
        yield from (f"  {_describe(row)}: {row['verdict'].replace('_', ' ')}" for row in rows)
    counts = (
        f"{len(comparison.verdicts)} changed verdicts, {len(comparison.values)} changed values, "
        f"{len(comparison.only_before)} rows only in A, {len(comparison.only_after)} only in B"
    )
    yield f"{comparison.compared} rows compared: {'no difference' if comparison.is_same else counts}"


def _describe(row: Entry) -> str:
    batch = f"batch {row['batch_size']}" if row["batch_size"] else ""
    names = (row["paper"], row["item"], row["model"], batch, row["device"], row["system"], row["metric"])
    return ", ".join(name for name in names if name)


def _change(before: Entry, after: Entry, tolerance: float) -> Change:
    differences = []
    if changed_verdict := before["verdict"] != after["verdict"]:
        differences.append(f"{before['verdict']} -> {after['verdict']}".replace("_", " "))
    batches = [entry["our_batch_size"] or "unnamed" for entry in (before, after)]
    if batches[0] != batches[1]:  # the largest that fits, which membench found
        differences.append(f"batch {batches[0]} -> {batches[1]}")
    for name in VALUE_COLUMNS[1:3]:
        if _differs(before[name], after[name], tolerance):
            values = f"{before[name] or 'none'} -> {after[name] or 'none'}"
            differences.append(
                f"{name.removesuffix('_value')}: {values} {after['unit']}{_percent(before[name], after[name])}"
            )
    return Change(before, after, tuple(differences), changed_verdict)


def _differs(before: str, after: str, tolerance: float) -> bool:
    if not before or not after:
        return before != after
    return abs(float(after) - float(before)) > tolerance * abs(float(before))


def _percent(before: str, after: str) -> str:
    comparable = before and after and float(before)
    return f" ({float(after) / float(before) - 1:+.1%})" if comparable else ""
