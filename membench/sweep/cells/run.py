"""Cells run in this process: a configuration goes in, a record comes out, also of a cell that fails."""

import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from membench.backends.real import products_in
from membench.core import errors
from membench.core.errors import MembenchError
from membench.core.record import Configuration, Outcome, Record, Source, configuration_hash
from membench.sweep.cells.cell import Cell
from membench.sweep.cells.graphs import Graphs
from membench.sweep.cells.measured import measure
from membench.sweep.cells.metrics import CellNumbers
from membench.sweep.cells.simulated import simulate
from membench.sweep.results.provenance import device_facts, provenance

_OUTCOMES: dict[type[Exception], Outcome] = {
    errors.OutOfMemory: Outcome.OUT_OF_MEMORY,
    errors.InfeasibleSchedule: Outcome.INFEASIBLE,
    errors.UnsupportedModel: Outcome.UNSUPPORTED,
    errors.UnsupportedStrategy: Outcome.UNSUPPORTED,
    MemoryError: Outcome.OUT_OF_MEMORY,
    torch.OutOfMemoryError: Outcome.OUT_OF_MEMORY,
}


def run_cell(configuration: Configuration) -> Record:
    """Run one cell; see `run_cells`."""
    return next(run_cells([configuration]))


def run_cells(configurations: Iterable[Configuration]) -> Iterator[Record]:
    """Run cells one after another; neighbours of one model, batch size and framework share their graph.

    Args:
        configurations: see `Cell.from_configuration`. Of several processes or devices, each runs its share of the
            batch.
    """
    graphs = Graphs()
    for configuration in configurations:
        yield _run(configuration, graphs)


def _run(configuration: Configuration, graphs: Graphs) -> Record:
    backend: str = configuration["backend"]["name"]
    source = Source.of(backend)
    found = CellNumbers()
    outcome, reason = Outcome.OK, ""
    try:
        cell = Cell.from_configuration(configuration)
        if cell.is_simulated:
            simulate(cell, graphs, found)
        else:
            with products_in(cell.precision):
                found = measure(cell, graphs)
    except Exception as error:  # a cell's failure is its record; it never ends a sweep
        outcome, reason = outcome_of(error)
    facts: dict[str, Any] = {}
    if source is Source.MEASURED:
        facts = provenance()
        with suppress(MembenchError):  # the device is missing
            facts |= device_facts(backend)
    return Record(
        configuration, configuration_hash(configuration), source, outcome, reason, **vars(found), provenance=facts
    )


def outcome_of(error: Exception) -> tuple[Outcome, str]:
    """Return the outcome of a run that raised an error, and the reason in words."""
    outcome = _OUTCOMES.get(type(error), Outcome.FAILED)
    if outcome is Outcome.FAILED and not isinstance(error, MembenchError):
        traceback.print_exception(error)
        *_, last = traceback.extract_tb(error.__traceback__)
        return outcome, f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
    return outcome, str(error) or "the machine's memory is used up"
