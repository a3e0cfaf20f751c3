"""TensorBoard: a folder for each sweep, with its pictures and, in the tab of hyperparameters, its cells.

The tab plots the cells' numbers against each other.
"""

import json
import re
from pathlib import Path

from membench.core.record import Outcome
from membench.sweep.results.tracked import AXES, CELLS, Sweep, Tracking, origin_of

_WORDS = ("model", "batch_size", "strategy", "system", "framework", "device", "budget", "micro_batch")
"""Columns of cells that the tab of hyperparameters has beside their numbers."""


def log_runs(tracking: Tracking, sweep: Sweep) -> Path:
    """Log a finished sweep, and return its folder below ``<directory>/tensorboard``."""
    import matplotlib.pyplot as plt
    from torch.utils.tensorboard import SummaryWriter  # takes a second

    folder = Path(tracking.directory) / "tensorboard" / re.sub(r"[^\w.-]", "-", sweep.group)
    with SummaryWriter(str(folder)) as report:
        for name, path in sweep.pictures.items():
            report.add_image(f"figures/{name}", plt.imread(path), dataformats="HWC")
        for name, value in sweep.summary.items():
            report.add_scalar(f"summary/{name}", value)
        for outcome in Outcome:
            count = sum(record.outcome is outcome for record in sweep.records)
            report.add_scalar(f"summary/cells_{outcome}", count)
        described = json.dumps({**sweep.configuration, **origin_of(sweep.records)}, indent=1, default=str)
        report.add_text("configuration", "".join(f"    {line}\n" for line in described.splitlines()))
    for number, row in enumerate(sweep.tables.get(CELLS, ()) if tracking.cell_runs else ()):
        with SummaryWriter(str(folder / f"{number}")) as cell:
            words = {name: str(row[name]) for name in _WORDS if row.get(name) is not None}
            numbers = {name: row[name] for name in AXES if row.get(name) is not None}
            cell.add_hparams({**words, "outcome": row["outcome"]}, numbers, run_name=".")
    return folder
