"""Tracking of sweeps: the process that started one logs it at its end, from records.

A cell that dies thus leaves no run half written.
"""

import sys
from pathlib import Path

from membench.core.errors import MembenchError, one_line
from membench.core.extras import require
from membench.core.files import shown
from membench.sweep.results.tracked import Sweep, Tracking


def check_tracking(tracking: Tracking) -> None:
    """Have what is to log a sweep accept it, before any cell takes its time; in a terminal, W&B asks for a key.

    Raises:
        MembenchError: it does not.
    """
    if tracking.mode != "disabled":
        require("tensorboard" if tracking.mode == "tensorboard" else "wandb", f"tracking={tracking.mode}")
    if tracking.mode == "online":
        import wandb  # half a second

        try:
            wandb.login()
        except (wandb.errors.Error, ValueError) as error:
            raise MembenchError(
                f"W&B cannot log online ({one_line(error)}); `wandb login` keeps a key, and tracking=offline needs none"
            ) from error


def log_sweep(tracking: Tracking, sweep: Sweep) -> Path | None:
    """Log a finished sweep; if W&B refuses, print its reason: the sweep's results are kept all the same.

    Returns:
        The report's folder, or None when tracking is disabled or was refused.
    """
    if tracking.mode == "disabled":
        return None
    if tracking.mode == "tensorboard":
        from membench.sweep.results import tensorboard_runs

        return tensorboard_runs.log_runs(tracking, sweep)
    from wandb.errors import Error  # importing wandb takes half a second

    from membench.sweep.results import wandb_runs

    try:
        return wandb_runs.log_runs(tracking, sweep)
    except (Error, ValueError) as error:  # ValueError: of environment variables that W&B cannot parse
        print(f"W&B has not logged this ({one_line(error)}); tracking=offline needs no account", file=sys.stderr)
        return None


def where(tracking: Tracking, sweep: Sweep, report: Path) -> str:
    """Return one line on where a logged sweep lies, and how to see it."""
    others = f", and {len(sweep.records)} of its cells" if tracking.cell_runs else ""
    see = {
        "offline": "; `make sync` uploads them" if others else "; `make sync` uploads it",
        "tensorboard": f"; tensorboard --logdir {shown(report)}",
    }
    kind = "TensorBoard run" if tracking.mode == "tensorboard" else "W&B run"
    return f"{kind} {shown(report)}{others}{see.get(tracking.mode, '')}"
