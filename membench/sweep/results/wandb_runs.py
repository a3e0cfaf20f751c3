"""Weights & Biases: a report run for each sweep and, grouped with it, a run for each cell."""

import json
import os
import re
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from membench.core.record import Outcome, Record
from membench.sweep.results.listing import has_failed
from membench.sweep.results.tracked import AXES, CELLS, Sweep, Tracking, origin_of, run_names

if TYPE_CHECKING:
    import wandb

_LONGEST_NAME = 128
"""Characters of a name that W&B takes."""


def log_runs(tracking: Tracking, sweep: Sweep) -> Path:
    """Log a finished sweep, and return the report run's folder.

    Raises:
        wandb.errors.Error: W&B refuses.
        ValueError: an environment variable is none that W&B can parse.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_DATA_DIR", str(Path(tracking.directory).resolve()))
    Path(tracking.directory).mkdir(parents=True, exist_ok=True)
    if tracking.cell_runs:
        names = run_names([record.configuration for record in sweep.records])
        for name, record in zip(names, sweep.records, strict=True):
            _log_cell(tracking, name, sweep.group, record)
    return _log_report(tracking, sweep)


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
        config={**sweep.configuration, **origin_of(sweep.records)},
    )
    outcomes = {f"cells_{outcome}": sum(record.outcome is outcome for record in sweep.records) for outcome in Outcome}
    tables = {
        name: wandb.Table(dataframe=pd.DataFrame(rows), allow_mixed_types=True) for name, rows in sweep.tables.items()
    }
    pictures = {f"figures/{name}": wandb.Image(str(path)) for name, path in sweep.pictures.items()}
    run.log({**tables, **_plots(sweep), **pictures, **outcomes, **sweep.summary})
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


def _plots(sweep: Sweep) -> dict[str, Any]:
    """Return a scatter plot of each pair of `AXES` that cells have both numbers of."""
    import wandb

    plots: dict[str, Any] = {}
    for x, y in combinations(AXES, 2):
        points: list[Any] = [
            [row[x], row[y], f"{row['model']} {row['strategy']}"]
            for row in sweep.tables.get(CELLS, ())
            if row.get(x) is not None and row.get(y) is not None
        ]
        if points:
            name = f"{y} over {x}"
            plots[name] = wandb.plot.scatter(wandb.Table([x, y, "cell"], points), x, y, name)
    return plots


def without_stderr(path: Path) -> str:
    """Return a record's file without what its process printed, which may be private and stays on this machine."""
    values = json.loads(path.read_text())
    return json.dumps({key: value for key, value in values.items() if key != "stderr_tail"}, indent=1)


def _start(tracking: Tracking, **options: Any) -> "wandb.Run":
    import wandb

    place: dict[str, Any] = {"mode": tracking.mode, "project": tracking.project, "dir": tracking.directory}
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
    return wandb.init(**place, **options, settings=settings)
