"""Plans and results of sweeps as text for a terminal."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from membench.core.configuration import method_of
from membench.core.document import Element, Table
from membench.core.record import Configuration, Outcome, Record, framework_name, limits_of
from membench.core.units import format_bytes, format_seconds
from membench.sweep.results.records import Records
from membench.sweep.results.summary import place

SKIPPED = "skipped"
"""Outcome of a cell that was not reached."""


IN_LINE = ("model", "batch_size", "strategy", "budget", "micro_batch")
"""Options that `cell_line` has."""


def cell_line(cell: Configuration) -> str:
    """Return a cell's model, batch size and strategy in columns, and its limits."""
    columns = f"{cell['model']['name']:<14} batch {cell['batch_size']:>7}  {method_of(cell):<16}"
    return " ".join([columns, *limits_of(cell)])


def differences(cells: Sequence[Configuration]) -> list[dict[str, str]]:
    """Return, for each cell, the options in which the cells differ, as they are written on the command line.

    A file that a group's option chooses is one option, ``strategy: eager``; options in it count among the cells that
    have that file, ``strategy.fixed_region: True``.
    """
    options = [_options(cell) for cell in cells]
    names = list(dict.fromkeys(name for each in options for name in each))
    differing = [name for name in names if len({each.get(name) for each in options}) > 1]
    chosen = {name.partition(".")[0] for name in differing if "." not in name}

    def differs(name: str) -> bool:
        group, inner, _ = name.partition(".")
        if not inner or group not in chosen:
            return True
        values: defaultdict[str | None, set[str | None]] = defaultdict(set)
        for each in options:
            values[each.get(group)].add(each.get(name))
        return any(len(of_file) > 1 for of_file in values.values())

    shown = [name for name in differing if differs(name)]
    return [{name: each[name] for name in shown if name in each} for each in options]


def _options(cell: Configuration) -> dict[str, str]:
    """Return the options of a cell by their names on the command line, those in a group's file included."""
    found = {}
    for group, value in cell.items():
        if not isinstance(value, Mapping):
            found[group] = str(value)
            continue
        found[group] = _file_of(cell, group)
        inner = {name: part for name, part in value.items() if name not in ("name", "_target_")}
        while inner:
            name, part = inner.popitem()
            if isinstance(part, Mapping):
                inner |= {f"{name}.{key}": each for key, each in part.items()}
            else:
                found[f"{group}.{name}"] = str(part)
    return found


def _file_of(cell: Configuration, group: str) -> str:
    """Return the name of the file that a group's option chooses, as far as the cell has it."""
    if group == "strategy":
        return method_of(cell)
    if group == "framework":
        return framework_name(cell).lower()
    return str(cell[group].get("name", ""))


def result(record: Record) -> str:
    """Return a record as one line."""
    head, metrics = cell_line(record.configuration), record.metrics
    if record.outcome is not Outcome.OK:
        return f"{head} {record.outcome.words}: {record.reason}"
    return f"{head} {format_bytes(metrics['peak_memory_bytes']):>10} {metrics['images_per_s']:10.1f} samples/s"


def announced(run: Callable[[Configuration], Record]) -> Callable[[Configuration], Record]:
    """Return a function that runs a cell and prints its result."""

    def run_and_print(cell: Configuration) -> Record:
        record = run(cell)
        print(result(record), flush=True)
        return record

    return run_and_print


def totals(records: Sequence[Record | None]) -> list[str]:
    """Return the number of cells by outcome, and a line for each that failed.

    Args:
        records: records of a sweep's cells; None for one that was not reached.
    """
    outcomes = Counter(record.outcome.words if record else SKIPPED for record in records)
    order = [*(outcome.words for outcome in Outcome), SKIPPED]
    counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in order if outcome in outcomes)
    failures = [f"  {result(record)}" for record in records if record and record.outcome.is_failure]
    again = ["rerun=failed runs the failed ones again"] if failures else []
    return [f"{_cells(len(records))}: {counts}", *failures, *again]


RANKING = ("peak", "step time", "samples/s", "copied", "exposed", "gap")


def ranking(records: Sequence[Record]) -> list[Element]:
    """Return cells as a table: for each model, batch and device those that fit, fastest first, then others."""
    options = differences([record.configuration for record in records])
    named = list(dict.fromkeys(name for each in options for name in each))
    names = named or ["strategy"]

    def order(position: int) -> tuple[Any, ...]:
        cell, outcome = records[position].configuration, records[position].outcome
        step = (cell["model"]["name"], cell["batch_size"], str(cell["device"] and cell["device"]["name"]))
        return *step, outcome is not Outcome.OK, records[position].metrics.get("step_time_s", 0.0), position

    rows = [[*names, *RANKING, ""]]
    for position in sorted(range(len(records)), key=order):
        record, given = records[position], options[position]
        own = [given.get(name, method_of(record.configuration) if name == "strategy" else "") for name in names]
        outcome = "" if record.outcome is Outcome.OK else record.outcome.words
        rows.append([*own, *(_numbers(record) if not outcome else [""] * len(RANKING)), outcome])
    return [", ".join(filter(None, _shared(records))), Table(tuple(map(tuple, rows)), keys=len(names))]


def _shared(records: Sequence[Record]) -> Iterator[str]:
    """Yield the model, the batch and the place, as far as all cells have the same."""
    parts = (
        (each["model"]["name"], f"batch {each['batch_size']}", place(each))
        for each in (record.configuration for record in records)
    )
    for values in zip(*parts, strict=True):
        yield values[0] if len(set(values)) == 1 else ""


def _numbers(record: Record) -> list[str]:
    metrics, gap = record.metrics, record.layer_metrics.get("gap")
    copied, exposed_s = metrics.get("transferred_bytes"), metrics.get("exposed_transfer_s")
    return [
        format_bytes(metrics["peak_memory_bytes"]),
        format_seconds(metrics["step_time_s"]),
        f"{metrics['images_per_s']:,.1f}",
        format_bytes(copied) if copied else "",
        format_seconds(exposed_s) if exposed_s else "",
        "" if gap is None else f"{gap:.1%}",
    ]


def has_failed(records: Sequence[Record | None]) -> bool:
    """Return whether a cell failed, ran out of time or was not reached."""
    return any(record is None or record.outcome.is_failure for record in records)


def plan(groups: Sequence[tuple[Records, Sequence[Configuration]]]) -> list[str]:
    """Return the cells that would run, each in a line with the options in which they differ, and their expected time.

    Args:
        groups: cells, each group with its store of records.
    """
    rows, states, due, expected_s, unknown = [], Counter[str](), 0, 0.0, 0
    for records, cells in groups:
        for cell, time_s in zip(cells, records.expected_time_s(cells), strict=True):
            state, is_due = records.state(cell), records.is_due(cell)
            states[state] += 1
            due += is_due
            expected_s += (time_s or 0.0) * is_due
            unknown += is_due and time_s is None
            time = "time unknown" if time_s is None else format_seconds(time_s)
            rows.append((state, f"runs, {time}" if is_due else ""))
    lines = [
        f"  {state:<8} {line}  {run}".rstrip()
        for line, (state, run) in zip(_columns([cell for _, cells in groups for cell in cells]), rows, strict=True)
    ]
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    known = f", about {format_seconds(expected_s)} one after another" if unknown < due else ""
    unknown_too = f", {unknown} of unknown time" if unknown else ""
    return [*lines, f"{_cells(len(lines))}: {counts}; {due} to run{known}{unknown_too}"]


def _columns(cells: Sequence[Configuration]) -> list[str]:
    """Return a line for each cell: the options in which the cells differ, aligned; of a single cell its `cell_line`."""
    if len(cells) == 1:
        return [cell_line(cells[0])]
    rows = [{name: f"{name}={value}" for name, value in each.items()} for each in differences(cells)]
    widths: dict[str, int] = {}
    for row in rows:
        for name, word in row.items():
            widths[name] = max(widths.get(name, 0), len(word))
    return ["  ".join(row.get(name, "").ljust(width) for name, width in widths.items()) for row in rows]


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
