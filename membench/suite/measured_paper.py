"""A paper's experiments on the GPU at hand: its methods on PyTorch, within the memory of its own device."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from membench import configuration
from membench.device import file_name
from membench.errors import MembenchError
from membench.experiment import LARGEST, Cell, Paper
from membench.record import Record
from membench.report.results import evaluate_all
from membench.report.tables import format_number, key_columns, write_csv
from membench.suite.provenance import device_facts
from membench.suite.records import Records
from membench.suite.runner import Configuration, call_fresh, run_largest


def gpu_at_hand() -> dict[str, Any] | None:
    """Return what there is to know of this machine's GPU, or None without one."""
    try:
        return call_fresh(device_facts, "cuda")
    except MembenchError:
        return None


def measure_on_gpu(
    paper: Paper, cells: Mapping[Cell, Configuration], gpu: dict[str, Any], directory: Path
) -> None:
    """Run a paper's cells on the GPU and write the values of its rows to ``<directory>/<gpu>/<paper>.csv``."""
    folder = directory / file_name(gpu["device"])
    records = Records(folder / "records.jsonl")
    write_csv(
        measured_rows(paper, {cell: run_on_gpu(found, records.run) for cell, found in cells.items()}),
        folder / f"{paper.name}.csv",
    )


def run_on_gpu(cell: Configuration, run: Callable[[Configuration], Record]) -> Record:
    """Run a simulated cell's method on the GPU, capped at the memory of the device that it was simulated on."""
    capacity_bytes = cell["device"]["memory_bytes"]
    measured = {
        **cell,
        "device": None,
        "framework": configuration.read("framework", "pytorch"),
        "backend": configuration.read("backend", "cuda"),
        "budget": cell["budget"] or str(capacity_bytes),
    }
    if cell["batch_size"] == LARGEST:
        return run_largest(measured, run, capacity_bytes=capacity_bytes)
    return run(measured)


def measured_rows(paper: Paper, records: Mapping[Cell, Record]) -> pd.DataFrame:
    """Return the rows of which the records give a value, in the row's unit."""
    columns = [
        {**key_columns(result.row), "measured_value": format_number(result.value)}
        for results in evaluate_all(paper, records, trainings={}).values()
        for result in results
        if result.value is not None
    ]
    return pd.DataFrame(columns)
