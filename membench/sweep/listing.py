"""Plans and results of sweeps as text for a terminal."""

from collections import Counter
from collections.abc import Callable, Sequence

from membench.core.configuration import method_of
from membench.core.record import Configuration, Outcome, Record, limits_of
from membench.core.units import format_bytes, format_seconds
from membench.sweep.records import Records

SKIPPED = "skipped"
"""Outcome of a cell that was not reached."""


def cell_line(cell: Configuration) -> str:
    """Return a cell's model, batch size and strategy in columns, and its limits."""
    columns = f"{cell['model']['name']:<14} batch {cell['batch_size']:>7}  {method_of(cell):<16}"
    return " ".join([columns, *limits_of(cell)])


def result(record: Record) -> str:
    """Return a record as one line."""
    head, metrics = cell_line(record.configuration), record.metrics
    if record.outcome is not Outcome.OK:
        return f"{head} {record.outcome.words}: {record.reason}"
    return f"{head} {format_bytes(metrics['peak_memory_bytes']):>10} {metrics['images_per_s']:10.1f} images/s"


def announced(run: Callable[[Configuration], Record]) -> Callable[[Configuration], Record]:
    """Return a function that runs a cell and prints its result."""

    def run_and_print(cell: Configuration) -> Record:
        record = run(cell)
        print(result(record), flush=True)
        return record

    return run_and_print


def totals(records: Sequence[Record | None]) -> str:
    """Return the number of cells by outcome, and a line for each that failed.

    Args:
        records: of a sweep's cells; None for one that was not reached.
    """
    outcomes = Counter(record.outcome.words if record else SKIPPED for record in records)
    order = [*(outcome.words for outcome in Outcome), SKIPPED]
    counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in order if outcome in outcomes)
    failures = [f"  {result(record)}" for record in records if record and record.outcome.is_failure]
    again = ["rerun=failed runs the failed ones again"] if failures else []
    return "\n".join([f"{_cells(len(records))}: {counts}", *failures, *again])


def has_failed(records: Sequence[Record | None]) -> bool:
    """Return whether a cell failed, ran out of time or was not reached."""
    return any(record is None or record.outcome.is_failure for record in records)


def plan(groups: Sequence[tuple[Records, Sequence[Configuration]]]) -> str:
    """Return the cells that would run, one in a line, and their expected time.

    Args:
        groups: cells, each group with its store of records.
    """
    lines, states, due, expected_s, unknown = [], Counter[str](), 0, 0.0, 0
    for records, cells in groups:
        for cell, time_s in zip(cells, records.expected_time_s(cells), strict=True):
            state, is_due = records.state(cell), records.is_due(cell)
            states[state] += 1
            due += is_due
            expected_s += (time_s or 0.0) * is_due
            unknown += is_due and time_s is None
            time = "time unknown" if time_s is None else format_seconds(time_s)
            lines.append(f"  {state:<8} {cell_line(cell)} {f'runs, {time}' if is_due else ''}".rstrip())
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    known = f", about {format_seconds(expected_s)} one after another" if unknown < due else ""
    unknown_too = f", {unknown} of unknown time" if unknown else ""
    return "\n".join([*lines, f"{_cells(len(lines))}: {counts}; {due} to run{known}{unknown_too}"])


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
