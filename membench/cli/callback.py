"""Summary and log of a run or a sweep, made at its end in the process that started it."""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from membench.cli.main import exit_code
from membench.core.errors import MembenchError
from membench.core.files import shown
from membench.core.libraries.launched import launched
from membench.core.record import Configuration, Record
from membench.core.result import Output, print_answer
from membench.core.tables import write_rows
from membench.core.terminal import show
from membench.sweep.composition import resolved
from membench.sweep.processes.worker import Workers
from membench.sweep.processes.worker_main import CELL, RECORD
from membench.sweep.results.listing import has_failed, plan, ranking, totals
from membench.sweep.results.records import Records, Rerun, directory_of
from membench.sweep.results.tables import rows
from membench.sweep.results.tracked import CELLS, Sweep, Tracking, cell_rows
from membench.sweep.results.tracking import check_tracking, log_sweep, where

TABLE = "cells.csv"
"""The file of a sweep's table, in its folder."""


class SweepCallback(Callback):
    """Hydra's hooks, named in `conf/config.yaml`. Jobs may run in other processes, so their files are read."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _prepare(config)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _prepare(config)

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        if launched().rank == 0:  # the first of several processes summarises for all
            self._end(config, Path(config.hydra.run.dir), [Path(config.hydra.run.dir)])

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        sweep = Path(config.hydra.sweep.dir)
        folders = [path.parent for path in sweep.rglob(CELL)]
        # ordered by number: by default a job's folder is named after its number; hydra.sweep.subdir changes that
        self._end(config, sweep, sorted(folders, key=lambda folder: (len(str(folder)), folder)))

    def _end(self, config: DictConfig, sweep: Path, folders: list[Path]) -> None:
        """Print and log the summary; exit on an error, for which Hydra would only warn."""
        try:
            self._summarize(config, sweep, folders)
        except Exception as error:
            sys.exit(exit_code("run", error))

    def _summarize(self, config: DictConfig, sweep: Path, folders: list[Path]) -> None:
        """Print and log the summary; exit if a cell failed under strict=true."""
        if config.dry_run:
            show(_plan(config, [json.loads((folder / CELL).read_text()) for folder in folders]))
            return
        paths = [folder / RECORD for folder in folders]
        records = [Record.from_json(path.read_text()) if path.exists() else None for path in paths]
        asked = [json.loads((folder / CELL).read_text()) for folder in folders]
        cells = [(cell, record) for cell, record in zip(asked, records, strict=True) if record]
        made = [record for _, record in cells]
        if len(records) > 1:
            _print_table(config, sweep, records, made)
        if cells:
            _log(config, sweep, cells)
        if config.strict and has_failed(records):
            sys.exit(1)


def _prepare(config: DictConfig) -> None:
    """Make the folder for records, and have W&B accept the run, before any cell takes its time; exit on an error."""
    if not config.dry_run:
        try:
            Path(config.records).mkdir(parents=True, exist_ok=True)
            check_tracking(Tracking(**resolved(config.tracking)))
        except (OSError, MembenchError) as error:
            sys.exit(exit_code("run", error))


def _print_table(config: DictConfig, sweep: Path, records: list[Record | None], made: list[Record]) -> None:
    """Write the table of a sweep into its folder, and print it."""
    found = rows(made)
    table = sweep / TABLE
    write_rows(found, table)
    ranked = ranking(made) if len(made) > 1 else []
    print_answer(Output(config.output), [*ranked, *totals(records), f"table: {shown(table)}"], rows=found)


def _plan(config: DictConfig, cells: list[Configuration]) -> list[str]:
    groups: defaultdict[Path, list[Configuration]] = defaultdict(list)
    for cell in cells:
        groups[directory_of(cell, Path(config.records))].append(cell)
    run, rerun = Workers().run, Rerun(config.rerun)
    return plan([(Records(directory, run, rerun), groups[directory]) for directory in groups])


def _log(config: DictConfig, folder: Path, cells: list[tuple[Configuration, Record]]) -> None:
    """Log the sweep to W&B, and print where its runs lie."""
    records = [record for _, record in cells]
    sweep = Sweep(
        name=f"{len(records)} cells",
        group="-".join(folder.parts[-2:]),
        tags=sorted({f"backend:{record.configuration['backend']['name']}" for record in records}),
        configuration={"overrides": list(config.hydra.overrides.task)},
        summary={"cells": len(records)},
        tables={CELLS: cell_rows(cells)},
        files={f"{path.parent.name}.json": path for path in sorted(folder.rglob(RECORD))},
        records=records,
    )
    tracking = Tracking(**resolved(config.tracking))
    if report := log_sweep(tracking, sweep):
        print(where(tracking, sweep, report))
