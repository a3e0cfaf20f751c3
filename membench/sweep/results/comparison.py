"""Two folders of records side by side: the same cells, or those that differ by what is constant in each folder."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from membench.core.document import Element, Table
from membench.core.record import Record
from membench.core.units import format_bytes, format_seconds
from membench.sweep.results.listing import differences

TOLERANCE = 0.01
"""The largest change of a number, as a fraction, that counts as none."""
_NUMBERS = (("peak_memory_bytes", format_bytes), ("step_time_s", format_seconds))


@dataclass(frozen=True)
class Pair:
    """A cell of two folders.

    Attributes:
        options: in which the cells of both folders differ.
    """

    options: Mapping[str, str]
    before: Record
    after: Record

    def change(self, metric: str) -> float | None:
        """Return by what share a number changed; None: one of the records does not have it, or it was 0."""
        before, after = (record.metrics.get(metric) for record in (self.before, self.after))
        return None if not before or after is None else after / before - 1

    def differs(self, tolerance: float) -> bool:
        """Return whether the outcome or a number changed."""
        changes = (self.change(metric) for metric, _ in _NUMBERS)
        return self.before.outcome is not self.after.outcome or any(abs(each or 0.0) > tolerance for each in changes)


@dataclass(frozen=True)
class RecordsComparison:
    """Two sets of records.

    Attributes:
        between: options that are constant in each set and not the same, such as the device, with both values.
    """

    between: Mapping[str, tuple[str, str]]
    pairs: tuple[Pair, ...]
    only_before: tuple[Record, ...]
    only_after: tuple[Record, ...]
    tolerance: float

    @property
    def is_same(self) -> bool:
        is_alone = bool(self.between or self.only_before or self.only_after)
        return not is_alone and not any(pair.differs(self.tolerance) for pair in self.pairs)


def compare_records(
    before: Sequence[Record], after: Sequence[Record], *, tolerance: float = TOLERANCE
) -> RecordsComparison:
    """Compare cells with the same options, except for those that are constant in each set.

    Args:
        tolerance: as a fraction of the value before.
    """
    options = differences([record.configuration for record in (*before, *after)])
    of_before, of_after = options[: len(before)], options[len(before) :]
    between = {}
    for name in dict.fromkeys(name for each in options for name in each):
        values = [{each.get(name, "") for each in of_set} for of_set in (of_before, of_after)]
        if all(len(each) == 1 for each in values) and values[0] != values[1]:
            between[name] = (min(values[0]), min(values[1]))
    groups = {name.partition(".")[0] for name in between if "." not in name}
    left_out = {name for each in options for name in each if name in between or name.partition(".")[0] in groups}

    def key(own: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((name, value) for name, value in own.items() if name not in left_out))

    waiting: defaultdict[Any, list[Record]] = defaultdict(list)
    for record, own in zip(after, of_after, strict=True):
        waiting[key(own)].append(record)
    pairs, only_before = [], []
    for record, own in zip(before, of_before, strict=True):
        shown = {name: value for name, value in own.items() if name not in left_out}
        if found := waiting[key(own)]:
            pairs.append(Pair(shown, record, found.pop(0)))
        else:
            only_before.append(record)
    only_after = tuple(record for records in waiting.values() for record in records)
    return RecordsComparison(between, tuple(pairs), tuple(only_before), only_after, tolerance)


def elements(comparison: RecordsComparison) -> Iterator[Element]:
    """Yield the comparison as it is printed: what differs between the sets, the cells of both, and the counts."""
    for name, (before, after) in comparison.between.items():
        yield f"  {name}: {before or 'none'} in A, {after or 'none'} in B"
    if comparison.pairs:
        names = list(dict.fromkeys(name for pair in comparison.pairs for name in pair.options)) or ["model"]
        head = (*names, "peak A", "peak B", "change", "step A", "step B", "change", "outcome")
        yield Table((head, *(_row(pair, names) for pair in comparison.pairs)), keys=len(names))
    changed = sum(pair.differs(comparison.tolerance) for pair in comparison.pairs)
    yield (
        f"{len(comparison.pairs)} cells in both, {changed} of them differ by more than {comparison.tolerance:.1%}; "
        f"{len(comparison.only_before)} only in A, {len(comparison.only_after)} only in B"
    )


def _row(pair: Pair, names: Sequence[str]) -> tuple[str, ...]:
    cells = []
    for metric, form in _NUMBERS:
        values = (record.metrics.get(metric) for record in (pair.before, pair.after))
        change = pair.change(metric)
        cells += ["" if value is None else form(value) for value in values]
        cells.append("" if change is None else f"{change:+.1%}")
    outcomes = [record.outcome.words for record in (pair.before, pair.after)]
    model = pair.before.configuration["model"]["name"]
    named = [pair.options.get(name, model if name == "model" else "") for name in names]
    return (*named, *cells, outcomes[0] if outcomes[0] == outcomes[1] else " -> ".join(outcomes))


def rows(comparison: RecordsComparison) -> Iterator[dict[str, Any]]:
    """Yield the cells of both sets as rows of numbers."""
    for pair in comparison.pairs:
        found: dict[str, Any] = {**pair.options}
        for metric, _ in _NUMBERS:
            found |= {f"{metric}_a": pair.before.metrics.get(metric), f"{metric}_b": pair.after.metrics.get(metric)}
            found[f"{metric.rpartition('_')[0]}_change"] = pair.change(metric)
        yield {**found, "outcome_a": str(pair.before.outcome), "outcome_b": str(pair.after.outcome)}
