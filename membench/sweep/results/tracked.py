"""What a sweep logs, whatever reads it: its tables, pictures, files and the origin of its numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from membench.core.configuration import method_of
from membench.core.record import LARGEST, Configuration, Outcome, Record, configuration_hash, framework_name
from membench.sweep.results.listing import IN_LINE, cell_line, differences
from membench.sweep.results.provenance import provenance

CELLS = "cells"
"""The table of a sweep's cells."""
AXES = ("peak_memory_bytes", "images_per_s", "largest_batch_size")
"""Columns of `CELLS` that are plotted against each other."""


@dataclass(frozen=True)
class Tracking:
    """Where sweeps are logged: in W&B, offline or online, or in TensorBoard; `conf/tracking/` has a file for each mode.

    Attributes:
        cell_runs: whether each cell has a run of its own in addition to the sweep's.
    """

    mode: Literal["disabled", "offline", "online", "tensorboard"]
    project: str
    directory: str
    cell_runs: bool


@dataclass(frozen=True)
class Sweep:
    """Contents of a sweep's runs.

    Attributes:
        tables: rows by the table's name, values by column; each pair of `AXES` of the `CELLS` is plotted.
        files: for its artifact, by their names there; folders with all that is in them.
        pictures: PNG files that it shows, by name.
    """

    name: str
    group: str
    tags: Sequence[str]
    configuration: Mapping[str, Any]
    summary: Mapping[str, float]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    files: Mapping[str, Path]
    records: Sequence[Record]
    pictures: Mapping[str, Path] = field(default_factory=dict)


def cell_rows(cells: Iterable[tuple[Configuration, Record]]) -> list[dict[str, Any]]:
    """Return a row for each cell, with its numbers, and the largest batch where that was searched for as well.

    Args:
        cells: each with its record; the batch size that was asked for may be ``largest``.
    """
    cells = list(cells)
    largest = {
        configuration_hash({**cell, "batch_size": None}): record.configuration["batch_size"]
        for cell, record in cells
        if cell["batch_size"] == LARGEST and record.outcome is Outcome.OK
    }
    return [
        record_row(record) | {AXES[-1]: largest.get(configuration_hash({**cell, "batch_size": None}))}
        for cell, record in cells
    ]


def record_row(record: Record) -> dict[str, Any]:
    """Return a record as a row: its configuration's names, its outcome, and its numbers."""
    configuration = record.configuration
    return {
        "model": configuration["model"]["name"],
        "batch_size": configuration["batch_size"],
        "strategy": method_of(configuration),
        "budget": configuration["budget"],
        "micro_batch": configuration["micro_batch"],
        "framework": framework_name(configuration),
        "device": configuration["device"] and configuration["device"]["name"],
        "configuration_hash": record.configuration_hash,
        "source": str(record.source),
        "outcome": str(record.outcome),
        "reason": record.reason,
        **record.metrics,
    }


def run_names(cells: Sequence[Configuration]) -> list[str]:
    """Return each cell's model, batch size, method and limits, and the other options in which the cells differ."""
    return [
        " ".join([*cell_line(cell).split(), *(f"{key}={value}" for key, value in own.items() if key not in IN_LINE)])
        for cell, own in zip(cells, differences(cells), strict=True)
    ]


def origin_of(records: Iterable[Record]) -> dict[str, Any]:
    """Return the commit, and the devices and frameworks of the records with their constants, each by its name."""
    cells = [record.configuration for record in records]
    made = provenance()
    return {
        "commit": made["commit"],
        "clean": made["clean"],
        "versions": made["versions"],
        "devices": {cell["device"]["name"]: cell["device"] for cell in cells if cell.get("device")},
        "frameworks": {framework_name(cell): cell["framework"] for cell in cells},
    }
