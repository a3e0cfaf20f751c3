"""One job of `membench run`: a composed configuration in, a record in the job's folder out."""

import atexit
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from math import inf
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig

from membench.cli.main import exit_code
from membench.core.errors import MembenchError, unknown
from membench.core.files import shown, write_whole
from membench.core.libraries.launched import launched
from membench.core.record import Configuration, Outcome, Record
from membench.core.result import Output, print_answer
from membench.sweep.composition import cell_configuration
from membench.sweep.processes.worker import Workers
from membench.sweep.processes.worker_main import CELL, RECORD
from membench.sweep.results.listing import result
from membench.sweep.results.records import Records, Rerun, directory_of
from membench.sweep.results.summary import summary
from membench.sweep.results.tracked import record_row


def run_job(config: DictConfig) -> float | tuple[float, ...] | None:
    """Run a job; on an error of one that runs in this process, end it, because Hydra would print the error too.

    Returns:
        The numbers that the option ``objective`` names, for a sweeper that searches.
    """
    try:
        record = _run(config)
        return None if record is None or config.objective is None else objectives(record, config.objective)
    except Exception as error:
        if HydraConfig.get().runtime.choices["hydra/launcher"] != "basic":
            raise
        sys.exit(exit_code("run", error))


def _run(config: DictConfig) -> Record | None:
    """Write a cell's configuration into the job's folder, and its record when it has one; print a summary.

    A dry run writes the configuration alone. If several processes share the cell's batch, only the first writes.
    """
    cell = cell_configuration(config)
    folder = Path(HydraConfig.get().runtime.output_dir)
    if launched().rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / CELL, json.dumps(cell))
    if config.dry_run:
        return None
    is_new = True
    if launched().count > 1:
        record = _run_together(cell, config)
    else:
        workers, directory = _workers(config.time_limit_s), directory_of(cell, Path(config.records))
        records = Records(directory, workers.run, Rerun(config.rerun))
        is_new = records.is_due(cell)
        record = records.run(cell)
    if launched().rank == 0:
        write_whole(folder / RECORD, record.to_json() + "\n")
        output = Output(config.output)
        if HydraConfig.get().mode is RunMode.MULTIRUN:  # a table of all follows
            print(result(record), flush=True, file=sys.stdout if output is Output.TEXT else sys.stderr)
            return record
        known = "" if is_new else f", copied from {shown(directory)}; rerun=all runs it again"
        place = ("record", f"{shown(folder / RECORD)}{known}")
        print_answer(output, summary(record, place), asdict(record), [record_row(record)])
    return record


def objectives(record: Record, named: str | Sequence[str]) -> float | tuple[float, ...]:
    """Return numbers of a record for a sweeper; of a cell without them, such as one that does not fit, the worst.

    Args:
        named: a metric, or several.
    """
    names = [named] if isinstance(named, str) else list(named)
    asked = HydraConfig.get().sweeper.get("direction") or "minimize"
    directions = list(asked) if isinstance(asked, ListConfig) else [asked] * len(names)
    found = []
    for name, direction in zip(names, directions, strict=True):
        if record.outcome is Outcome.OK and name not in record.metrics:
            raise MembenchError(unknown("objective", name, record.metrics))
        found.append(float(record.metrics.get(name, -inf if "max" in str(direction) else inf)))
    return found[0] if isinstance(named, str) else tuple(found)


def _run_together(cell: Configuration, config: DictConfig) -> Record:
    """Run a cell in this process, which torchrun isolates.

    The record is not kept for later runs: the configuration does not contain the number of processes.
    """
    from membench.core.libraries import distributed
    from membench.sweep.cells.run import run_cell

    try:
        with distributed.join(config.backend.name, config.timeout_s):
            return run_cell(cell)
    except MembenchError as error:
        return Record.of_failure(cell, Outcome.FAILED, str(error))


@cache
def _workers(time_limit_s: float | None) -> Workers:
    """Return this process's workers, which stay warm for the launcher's next job."""
    workers = Workers(time_limit_s)
    atexit.register(workers.close)
    return workers
