"""Weights & Biases: a report run for each sweep and, grouped with it, a run for each cell.

The process that started the sweep logs all of them from records at its end, so that a cell that dies leaves no run half
written.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from membench.core.errors import one_line
from membench.core.record import Configuration, Outcome, Record
from membench.sweep.results.listing import IN_LINE, cell_line, differences, has_failed

if TYPE_CHECKING:
    import wandb

_LONGEST_NAME = 128
"""Characters of a name that W&B takes."""


@dataclass(frozen=True)
class Tracking:
    """Where sweeps are logged; `conf/tracking/` has a file for each mode.

    Attributes:
        cell_runs: whether each cell has a run of its own in addition to the sweep's.
    """

    mode: Literal["disabled", "offline", "online"]
    project: str
    directory: str
    cell_runs: bool


@dataclass(frozen=True)
class Sweep:
    """Contents of a sweep's runs.

    Attributes:
        rows: rows of the report run's table, values by column.
        files: for its artifact, by their names there; folders with all that is in them.
    """

    name: str
    group: str
    tags: Sequence[str]
    configuration: Mapping[str, Any]
    summary: Mapping[str, float]
    rows: Sequence[Mapping[Any, Any]]
    files: Mapping[str, Path]
    records: Sequence[Record]


def log_sweep(tracking: Tracking, sweep: Sweep) -> Path | None:
    """Log a finished sweep; if W&B refuses, print its reason: the sweep's results are kept all the same.

    Returns:
        The report run's directory, or None when tracking is disabled or was refused.
    """
    if tracking.mode == "disabled":
        return None
    from wandb.errors import Error  # importing wandb takes half a second

    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_DATA_DIR", str(Path(tracking.directory).resolve()))
    Path(tracking.directory).mkdir(parents=True, exist_ok=True)
    try:
        if tracking.cell_runs:
            names = run_names([record.configuration for record in sweep.records])
            for name, record in zip(names, sweep.records, strict=True):
                _log_cell(tracking, name, sweep.group, record)
        return _log_report(tracking, sweep)
    except (Error, ValueError) as error:  # ValueError: of environment variables that W&B cannot parse
        print(f"W&B has not logged this ({one_line(error)}); tracking=offline needs no account", file=sys.stderr)
        return None


def run_names(cells: Sequence[Configuration]) -> list[str]:
    """Return each cell's model, batch size, method and limits, and the other options in which the cells differ."""
    return [
        " ".join([*cell_line(cell).split(), *(f"{key}={value}" for key, value in own.items() if key not in IN_LINE)])
        for cell, own in zip(cells, differences(cells), strict=True)
    ]


def _log_cell(tracking: Tracking, name: str, group: str, record: Record) -> None:
    run = _start(
        tracking,
        name=name,
        group=group,
        job_type="cell",
        tags=[str(record.outcome), str(record.source)],
        config=record.configuration,
    )
    run.summary.update({"outcome": str(record.outcome), "reason": record.reason, **record.metrics})
    run.finish(exit_code=int(record.outcome.is_failure))


def _log_report(tracking: Tracking, sweep: Sweep) -> Path:
    import pandas as pd  # takes as long; most commands need neither pandas nor wandb
    import wandb

    run = _start(
        tracking,
        name=sweep.name,
        group=sweep.group,
        job_type="report",
        tags=list(sweep.tags),
        config=dict(sweep.configuration),
    )
    outcomes = {f"cells_{outcome}": sum(record.outcome is outcome for record in sweep.records) for outcome in Outcome}
    run.log({"rows": wandb.Table(dataframe=pd.DataFrame(sweep.rows)), **outcomes, **sweep.summary})
    artifact = wandb.Artifact(
        name=re.sub(r"[^\w.-]", "-", sweep.group, flags=re.ASCII)[-_LONGEST_NAME:], type="results"
    )
    for name, path in sweep.files.items():
        if path.suffix == ".json":
            with artifact.new_file(name) as file:
                file.write(without_stderr(path))
        else:
            artifact.add_dir(str(path), name) if path.is_dir() else artifact.add_file(str(path), name)
    run.log_artifact(artifact)
    directory = Path(run.dir).parent
    run.finish(exit_code=int(has_failed(sweep.records)))
    return directory


def without_stderr(path: Path) -> str:
    """Return a record's file without what its process printed, which may be private and stays on this machine."""
    values = json.loads(path.read_text())
    return json.dumps({key: value for key, value in values.items() if key != "stderr_tail"}, indent=1)


def _start(tracking: Tracking, **options: Any) -> "wandb.Run":
    import wandb

    place: dict[str, Any] = {"mode": tracking.mode, "project": tracking.project, "dir": tracking.directory}
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
    return wandb.init(**place, **options, settings=settings)
