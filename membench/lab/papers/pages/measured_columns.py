"""A paper's experiments on this machine's GPU: its methods on PyTorch, within the memory of the paper's device."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.record import Configuration, Record
from membench.core.tables import format_number, write_csv
from membench.lab.papers.pages.results import evaluate_all
from membench.lab.papers.reading.experiment import Paper, PaperCell
from membench.lab.papers.reading.quantities import cells_of
from membench.lab.papers.reading.row_key import RowKey
from membench.sweep.results.provenance import device_facts_from_outside
from membench.sweep.results.records import Records

if TYPE_CHECKING:
    import pandas as pd


def gpu_at_hand() -> dict[str, Any] | None:
    """Return the facts of this machine's GPU, or None without one."""
    try:
        return device_facts_from_outside("cuda")
    except MembenchError:
        return None


def measure_on_gpu(paper: Paper, cells: Mapping[PaperCell, Configuration], records: Records, directory: Path) -> None:
    """Run a paper's cells on the GPU and write the values of its rows to ``<directory>/<paper>.csv``."""
    made = {
        cell: records.run(on_gpu(found), capacity_bytes=found["device"]["memory_bytes"])
        for cell, found in cells.items()
    }
    write_csv(measured_rows(paper, made), directory / f"{paper.name}.csv")


def on_gpu(cell: Configuration) -> Configuration:
    """Return a simulated cell's method on the GPU, capped at the memory of the device that it was simulated on."""
    return {
        **cell,
        "device": None,
        "framework": configuration.read("framework", "pytorch"),
        "backend": configuration.read("backend", "cuda"),
        "budget": cell["budget"] or str(cell["device"]["memory_bytes"]),
    }


def measured_rows(paper: Paper, records: Mapping[PaperCell, Record]) -> "pd.DataFrame":
    """Return the rows with a value from records in the row's unit, unless it is computed without a run."""
    import pandas as pd  # takes half a second, which parsing need not wait for

    columns = [
        {**RowKey.of(result.row)._asdict(), "measured_value": format_number(result.value)}
        for results in evaluate_all(paper, records, trainings={}).values()
        for result in results
        if result.answer.value and result.value is not None
        if any(cells_of(paper, result.row, result.answer))
    ]
    return pd.DataFrame(columns)
