"""Gathers the records of a command, one or many, and logs them as one W&B run at its end."""

from typing import Any

import pandas as pd
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from membench.record import Outcome, Record
from membench.suite.tracking import Tracking, log_sweep


class SweepCallback(Callback):
    """Hydra's hooks around jobs and sweeps; see `conf/config.yaml`."""

    def __init__(self) -> None:
        self._records: list[Record] = []

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if isinstance(job_return._return_value, Record):
            self._records.append(job_return._return_value)

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        self._log(config)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        self._log(config)

    def _log(self, config: DictConfig) -> None:
        if not self._records:
            return
        settings = OmegaConf.to_container(config.tracking, resolve=True)
        assert isinstance(settings, dict)
        log_sweep(
            Tracking(**{str(key): value for key, value in settings.items()}),
            pd.DataFrame([row(record) for record in self._records]),
            name=f"{len(self._records)} cells",
            group="command line",
            job_type="cell",
            tags=sorted({f"backend:{record.configuration['backend']['name']}" for record in self._records}),
            configuration={"cells": [record.configuration for record in self._records]},
            summary={"cells": len(self._records)},
            failed=any(record.outcome is Outcome.FAILED for record in self._records),
        )


def row(record: Record) -> dict[str, Any]:
    """Return a record as one row of a table."""
    configuration = record.configuration
    return {
        "model": configuration["model"]["name"],
        "batch_size": configuration["batch_size"],
        "strategy": configuration["strategy"]["_target_"].rpartition(".")[2],
        "configuration_hash": record.configuration_hash,
        "source": str(record.source),
        "outcome": str(record.outcome),
        "reason": record.reason,
        **record.metrics,
    }
