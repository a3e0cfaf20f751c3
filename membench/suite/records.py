"""Measured records of one device, kept in a file, so that a sweep that was stopped goes on where it stopped."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from membench.record import Outcome, Record, Source, configuration_hash
from membench.suite.runner import Configuration, run_fresh
from membench.units import format_bytes


def describe_cell(record: Record) -> str:
    """Return a record as one line for a terminal."""
    cell, metrics = record.configuration, record.metrics
    name = cell["strategy"]["_target_"].rpartition(".")[2]
    head = f"{cell['model']['name']:<12} batch {cell['batch_size']:>5}  {name:<16}"
    if record.outcome is not Outcome.OK:
        return f"{head} {record.outcome}: {record.reason}"
    return f"{head} {format_bytes(metrics['peak_memory_bytes']):>10} {metrics['images_per_s']:10.1f} images/s"


class Records:
    """The records of one device, a line of JSON each, in the order in which they were made.

    Args:
        path: the file; it need not exist.
        run: how a cell that has no record is run.
        describe: how a new record is shown, as a line for a terminal.
    """

    def __init__(
        self,
        path: Path,
        run: Callable[[Configuration], Record] = run_fresh,
        describe: Callable[[Record], str] = describe_cell,
    ) -> None:
        self._path = path
        self._run = run
        self._describe = describe
        self._known: dict[str, Record] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                record = _record(json.loads(line))
                self._known[record.configuration_hash] = record

    def find(self, cell: Configuration) -> Record | None:
        """Return a cell's record, if the file has one."""
        return self._known.get(configuration_hash(cell))

    def run(self, cell: Configuration) -> Record:
        """Return a cell's record, from the file or from a run; one that failed is run again."""
        known = self.find(cell)
        if known is not None and known.outcome is not Outcome.FAILED:
            return known
        record = self._run(cell)
        self._known[record.configuration_hash] = record
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")
        print(self._describe(record), flush=True)
        return record


def _record(entry: dict[str, Any]) -> Record:
    samples = {name: tuple(values) for name, values in entry["samples"].items()}
    source, outcome = Source(entry["source"]), Outcome(entry["outcome"])
    return Record(**{**entry, "samples": samples, "source": source, "outcome": outcome})
