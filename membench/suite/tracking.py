"""Weights & Biases: one run for a sweep, owned by the process that started it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd


@dataclass(frozen=True)
class Tracking:
    """Where sweeps are logged; `conf/tracking/` has a file for each mode."""

    mode: Literal["disabled", "offline", "online"]
    project: str
    directory: str


def log_sweep(
    tracking: Tracking,
    rows: pd.DataFrame,
    *,
    name: str,
    group: str,
    job_type: str,
    tags: Sequence[str],
    configuration: Mapping[str, Any],
    summary: Mapping[str, float],
    failed: bool = False,
) -> Path | None:
    """Log a finished sweep as one run with a table of its rows.

    Returns:
        The run's directory, or None when tracking is disabled.
    """
    if tracking.mode == "disabled":
        return None
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb  # takes half a second

    Path(tracking.directory).mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        mode=tracking.mode,
        project=tracking.project,
        dir=tracking.directory,
        name=name,
        group=group,
        job_type=job_type,
        tags=list(tags),
        config=dict(configuration),
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
    )
    run.log({"rows": wandb.Table(dataframe=rows), **summary})
    directory = Path(run.dir).parent
    run.finish(exit_code=int(failed))
    return directory
